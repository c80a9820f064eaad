"use strict";
// Sorts a table by the column whose heading is pressed; a second press turns the order round.
for (const table of document.querySelectorAll("table.sortable")) {
  const headings = [...table.tHead.rows[0].cells];
  headings.forEach((heading, column) => {
    const button = heading.querySelector("button");
    if (!button) return;
    button.addEventListener("click", () => {
      const first = heading.dataset.first || "ascending";
      const other = first === "ascending" ? "descending" : "ascending";
      const order = heading.getAttribute("aria-sort") === first ? other : first;
      headings.forEach((h) => h.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
      const compare = (a, b) => {
        const x = key(a), y = key(b);
        if (x === "" || y === "") return (x === "") - (y === ""); // missing values stay at the end
        const difference = Number(x) - Number(y);
        return sign * (Number.isNaN(difference) ? x.localeCompare(y) : difference);
      };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
      document.getElementById("status").textContent = `Sorted by ${button.textContent.trim()}, ${order}`;
    });
  });
}

// Shows the cue above a table whose columns do not all fit, and a shadow while more of them are to the right.
for (const table of document.querySelectorAll(".table")) {
  const scroller = table.querySelector(".wide");
  const update = () => {
    const outside = scroller.scrollWidth - scroller.clientWidth;
    table.classList.toggle("cut", outside > 1);
    table.classList.toggle("more", scroller.scrollLeft < outside - 1);
  };
  scroller.addEventListener("scroll", update, { passive: true });
  new ResizeObserver(update).observe(scroller);
  update();
}
