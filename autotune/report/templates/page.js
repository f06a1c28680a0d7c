const specs = JSON.parse(document.getElementById("specs").textContent);
const draw = window.vegaEmbed;
if (draw) {
  const options = { renderer: "svg", actions: false, ast: true, tooltip: { theme: "custom" } };
  for (const place of document.querySelectorAll("[data-chart]")) {
    // Vega names and labels the element it draws in; the figure's own description stays on the outer one.
    const inside = place.appendChild(document.createElement("div"));
    inside.setAttribute("aria-hidden", "true");
    draw(inside, specs[place.dataset.chart], options).then(() => place.dataset.drawn = "yes", (error) => {
      place.textContent = place.getAttribute("aria-label");
      console.error(error);
    });
  }
}
const said = document.getElementById("said");
for (const button of document.querySelectorAll("[data-copy]")) {
  button.addEventListener("click", async () => {
    const code = document.getElementById(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(code.textContent);
      said.textContent = "Copied";
      button.textContent = "Copied";
    } catch {
      // A page opened from a file may not write to the clipboard: select, so that the usual keys copy.
      getSelection().selectAllChildren(code);
      said.textContent = "Selected: press Ctrl+C";
      button.textContent = "Selected: press Ctrl+C";
    }
  });
}
