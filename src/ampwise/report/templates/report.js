"use strict";
// Draws each figure in its place, then says on the page's root how many traces can be seen.
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const config = {
    displaylogo: false,
    modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]],
  };
  const places = [...document.querySelectorAll("[data-figure]")];
  const drawn = places.map((place) => {
    const figure = figures[place.dataset.figure];
    return Plotly.newPlot(place, figure.data, figure.layout, config);
  });
  const isSeen = (trace) => trace.getBoundingClientRect().width > 0;
  Promise.all(drawn).then(() => {
    const traces = [...document.querySelectorAll(".main-svg .trace")];
    document.documentElement.dataset.tracesDrawn = String(traces.filter(isSeen).length);
  });
  const follow = new ResizeObserver((entries) => entries.forEach(({ target }) => Plotly.Plots.resize(target)));
  Promise.all(drawn).then(() => places.forEach((place) => follow.observe(place)));
  // A page is printed before its new width is observed.
  const fit = (sizeOf) => places.forEach((place) => Plotly.relayout(place, sizeOf(figures[place.dataset.figure].layout)));
  window.addEventListener("beforeprint", () => fit(({ height }) => ({ width: 640, height: Math.min(height, 300) })));
  window.addEventListener("afterprint", () => fit(({ height }) => ({ width: null, height, autosize: true })));
})();
