"use strict";
// Draws the figures of the page and draws them again when the reader's colour scheme changes.
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);

  // Figures name colours as style variables; everything else passes through.
  const filled = (node, style) => {
    if (typeof node === "string") return node.startsWith("--") ? style.getPropertyValue(node).trim() : node;
    if (Array.isArray(node)) return node.map((one) => filled(one, style));
    if (node && typeof node === "object") {
      return Object.fromEntries(Object.entries(node).map(([key, value]) => [key, filled(value, style)]));
    }
    return node;
  };

  const axis = (own) => ({
    automargin: true, zeroline: false, gridcolor: "--grid", linecolor: "--rule", ticks: "", fixedrange: false,
    tickfont: { size: 12, color: "--faint" }, ...own,
    title: { font: { size: 12, color: "--faint" }, standoff: 10, ...(own.title || {}) },
  });

  const layoutOf = (chart) => {
    const own = chart.figure.layout;
    const layout = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", height: chart.height,
      margin: { l: 8, r: 14, t: 34, b: 8 }, hovermode: "x unified", dragmode: "zoom",
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: "--ink" },
      hoverlabel: { bgcolor: "--paper", bordercolor: "--rule", font: { size: 12, color: "--ink" } },
      ...own,
      legend: {
        orientation: "h", x: 0, y: 1, xanchor: "left", yanchor: "bottom", bgcolor: "rgba(0,0,0,0)",
        font: { size: 12, color: "--faint" }, itemclick: false, itemdoubleclick: false, ...(own.legend || {}),
      },
    };
    for (const key of Object.keys(own)) if (/^[xy]axis/.test(key)) layout[key] = axis(own[key]);
    layout.showlegend = chart.figure.data.some((trace) => trace.name && trace.showlegend !== false);
    if (!layout.showlegend) layout.margin.t = 12;
    return layout;
  };

  const draw = () => {
    const style = getComputedStyle(document.documentElement);
    for (const chart of charts) {
      Plotly.react(
        `chart-${chart.key}`, filled(chart.figure.data, style), filled(layoutOf(chart), style),
        { displayModeBar: false },
      );
    }
  };
  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  // The width of the card decides, whatever changed it: a window, a zoom, a printer.
  const widths = new ResizeObserver((entries) => {
    for (const { target } of entries) Plotly.relayout(target, { width: target.clientWidth });
  });
  for (const chart of charts) widths.observe(document.getElementById(`chart-${chart.key}`));

  for (const table of document.querySelectorAll("table.sortable")) {
    table.querySelectorAll("th").forEach((header, column) => {
      header.querySelector("button").addEventListener("click", () => {
        const rising = header.getAttribute("aria-sort") === "descending";
        table.querySelectorAll("th").forEach((one) => one.removeAttribute("aria-sort"));
        header.setAttribute("aria-sort", rising ? "ascending" : "descending");
        const value = (row) => {
          const text = row.cells[column].dataset.value;
          return text === "" ? -Infinity : isNaN(text) ? text : Number(text);
        };
        const compare = (a, b) => (value(a) > value(b) ? 1 : value(a) < value(b) ? -1 : 0) * (rising ? 1 : -1);
        table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
      });
    });
  }
})();
