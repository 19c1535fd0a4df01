"use strict";
// Draws the figures in sight, then the others one by one or as the reader gets there. Says on the page's
// root when those in sight were drawn, and in the end how many traces can be seen.
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const config = {
    displaylogo: false,
    modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]],
  };
  const places = [...document.querySelectorAll("[data-figure]")];
  const shown = () => places.filter((place) => place.offsetWidth > 0);
  const begun = new Set();
  const draw = (place) => {
    if (begun.has(place)) return Plotly.Plots.resize(place);
    begun.add(place);
    const figure = figures[place.dataset.figure];
    return Plotly.newPlot(place, figure.data, figure.layout, config).then(() => {
      place.style.minHeight = "";
      follow.observe(place);
    });
  };
  const follow = new ResizeObserver((entries) =>
    entries.forEach(({ target }) => { if (target.offsetWidth > 0) Plotly.Plots.resize(target); }));
  const root = document.documentElement.dataset;
  const isSeen = (trace) => trace.getBoundingClientRect().width > 0;
  const soon = (work) => setTimeout(work, 50);  // the reader's scrolling and clicks come first
  const isNear = (place) => place.getBoundingClientRect().top < 1.5 * innerHeight;
  const waiting = () => shown().filter((place) => !begun.has(place));
  const drawRest = () => {
    const [next] = waiting();
    if (next) return draw(next).then(() => soon(drawRest));
    const traces = [...document.querySelectorAll(".main-svg .trace, .main-svg .hm")];
    root.tracesDrawn = String(traces.filter(isSeen).length);
  };
  for (const place of places) place.style.minHeight = `${figures[place.dataset.figure].layout.height}px`;
  Promise.all(shown().filter(isNear).map(draw)).then(() => {
    root.drawnMs = String(Math.round(performance.now()));
    soon(drawRest);
  });
  addEventListener("scroll", () => waiting().filter(isNear).forEach(draw), { passive: true });
  for (const choices of document.querySelectorAll("[data-choices]")) {
    const buttons = [...choices.querySelectorAll("button")];
    for (const button of buttons) button.addEventListener("click", () => {
      for (const one of buttons) {
        one.setAttribute("aria-pressed", String(one === button));
        document.getElementById(one.getAttribute("aria-controls")).hidden = one !== button;
      }
      shown().filter(isNear).forEach(draw);
    });
  }
  for (const button of document.querySelectorAll("[data-copy]")) button.addEventListener("click", () => {
    const text = button.parentElement.querySelector("pre");
    getSelection().selectAllChildren(text);
    const done = () => { button.textContent = "copied"; };
    if (navigator.clipboard) navigator.clipboard.writeText(text.textContent).then(done, () => {});
  });
  // A page is printed before its new width is observed.
  const fit = (sizeOf) => [...begun].filter((place) => place.offsetWidth > 0).forEach((place) =>
    Plotly.relayout(place, sizeOf(figures[place.dataset.figure].layout)));
  addEventListener("beforeprint", () => {
    waiting().forEach(draw);
    fit(({ height }) => ({ width: 640, height: Math.min(height, 300) }));
  });
  addEventListener("afterprint", () => fit(({ height }) => ({ width: null, height, autosize: true })));
})();
