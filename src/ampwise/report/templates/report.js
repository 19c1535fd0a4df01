"use strict";
// Draws each figure once its place can be seen, then says on the page's root how many traces of the first are seen.
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
    return Plotly.newPlot(place, figure.data, figure.layout, config).then(() => follow.observe(place));
  };
  const follow = new ResizeObserver((entries) =>
    entries.forEach(({ target }) => { if (target.offsetWidth > 0) Plotly.Plots.resize(target); }));
  const isSeen = (trace) => trace.getBoundingClientRect().width > 0;
  Promise.all(shown().map(draw)).then(() => {
    const traces = [...document.querySelectorAll(".main-svg .trace, .main-svg .hm")];
    document.documentElement.dataset.tracesDrawn = String(traces.filter(isSeen).length);
    document.documentElement.dataset.drawnMs = String(Math.round(performance.now()));
  });
  for (const choices of document.querySelectorAll("[data-choices]")) {
    const buttons = [...choices.querySelectorAll("button")];
    for (const button of buttons) button.addEventListener("click", () => {
      for (const one of buttons) {
        one.setAttribute("aria-pressed", String(one === button));
        document.getElementById(one.getAttribute("aria-controls")).hidden = one !== button;
      }
      shown().forEach(draw);
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
  window.addEventListener("beforeprint", () => fit(({ height }) => ({ width: 640, height: Math.min(height, 300) })));
  window.addEventListener("afterprint", () => fit(({ height }) => ({ width: null, height, autosize: true })));
})();
