"use strict";
// Everything that came from the service is put into the page as text, never as markup.
const at = (id) => document.getElementById(id);
const SHOWN = 5; // classes of a member
let about = null;
let image = null;

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function tell(text, error = false) {
  at("status").textContent = text;
  at("status").className = error ? "error" : "";
}

const short = (number) => Math.abs(number) >= 1e5 || (number && Math.abs(number) < 1e-4) ? number.toExponential(3) : number.toFixed(4);

function pictureField() {
  const input = make("input", { type: "file", accept: "image/*", id: "file" });
  const shown = make("img", { alt: "The image to predict", hidden: true });
  const told = make("span", { textContent: "Drop an image here, or click to choose one" });
  const drop = make("label", { className: "drop whole" }, shown, told, input);
  const take = (file) => {
    if (!file) return;
    image = file;
    if (shown.src) URL.revokeObjectURL(shown.src);
    shown.src = URL.createObjectURL(file);
    shown.hidden = false;
    told.textContent = file.name;
    ask();
  };
  input.addEventListener("change", () => take(input.files[0]));
  drop.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("over"); });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    take(event.dataTransfer.files[0]);
  });
  return drop;
}

function cellField(column, place) {
  const id = `column-${place}`;
  let input;
  if (column.kind === "category") {
    input = make("select", { id });
    for (const value of column.values) input.append(make("option", { value, textContent: value }));
  } else {
    input = make("input", { id, type: "text", inputMode: column.kind === "number" ? "decimal" : "text" });
    if (column.kind === "date") input.placeholder = column.format;
    else input.value = "0";
  }
  return make("div", {}, make("label", { htmlFor: id, textContent: column.name }), input);
}

function areaField(told, value) {
  return make("div", { className: "whole" }, make("label", { htmlFor: "area", textContent: told }),
    make("textarea", { id: "area", value }));
}

function zeros(shape) {
  return Array.from({ length: shape[0] }, () => shape.length > 1 ? zeros(shape.slice(1)) : 0);
}

function build() {
  at("name").textContent = document.title = about.name;
  at("about").textContent = `${about.method}, ${about.members} members; ${about.task}` +
    (about.defer ? `; defers above ${about.defer.above} of ${about.defer.of.replace("_", " ")}` : "");
  const fields = at("fields");
  if (about.takes === "image") fields.append(pictureField());
  else if (about.takes === "table") about.columns.forEach((column, place) => fields.append(cellField(column, place)));
  else if (about.takes === "text") fields.append(areaField("Text", ""));
  else fields.append(areaField(`Numbers of shape ${about.shape.join(" x ")}, as JSON`, JSON.stringify(zeros(about.shape))));
  at("go").disabled = false;
  tell("");
}

function cell(column, place) {
  const text = at(`column-${place}`).value.trim();
  if (column.kind === "category") return text;
  if (text === "") return null;
  // What is no number goes to the service as it is, whose error says what was expected.
  return column.kind === "number" && Number.isFinite(Number(text)) ? Number(text) : text;
}

function request() {
  if (about.takes === "image") {
    const form = new FormData();
    form.append("image", image);
    if (about.tells_members) form.append("members", "true");
    return { method: "POST", body: form };
  }
  const sent = about.tells_members ? { members: true } : {};
  if (about.takes === "table") sent.rows = [about.columns.map(cell)];
  else if (about.takes === "text") sent.texts = [at("area").value];
  else sent.inputs = [JSON.parse(at("area").value)];
  return { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(sent) };
}

function bar(what, share, value) {
  const fill = make("div", { className: "fill" });
  fill.style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
  return make("div", { className: "bar" }, make("span", { className: "what", textContent: what, title: what }),
    make("div", { className: "track" }, fill), make("span", { className: "value", textContent: value }));
}

function likeliest(probs, names, most) {
  const order = probs.map((_, place) => place).sort((a, b) => probs[b] - probs[a]).slice(0, most);
  return order.map((place) => bar(names[place], probs[place], probs[place].toFixed(4)));
}

function showNumbers(row, names) {
  at("numbers").replaceChildren(...names.map((name) =>
    make("div", {}, make("dt", { textContent: name.replace("_", " ") }), make("dd", { id: name, textContent: short(row[name]) }))));
}

// What conformal prediction guarantees, where the service was given it.
function guarantee(row) {
  const share = about.coverage === null ? "" : `${+(100 * about.coverage).toFixed(2)} % `;
  if (row.set) return `${share}conformal set: ${row.set.join(", ")}`;
  return "low" in row ? `${share}conformal interval: ${short(row.low)} to ${short(row.high)}` : "";
}

function showClasses(answer, row) {
  at("label").textContent = row.label;
  showNumbers(row, ["entropy", "mutual_information"]);
  at("ensemble").replaceChildren(...likeliest(row.probs, answer.classes, 10));
  at("members").replaceChildren(...(row.members ?? []).map((probs, place) => make("div", { className: "member" },
    make("p", { textContent: `Member ${place}` }), ...likeliest(probs, answer.classes, SHOWN))));
}

// The ends of the conformal interval, where the service has one.
const ends = (row) => ["low", "high"].filter((name) => name in row);

function showNumber(row) {
  at("label").textContent = `${short(row.mean)} ± ${short(row.std)}`;
  showNumbers(row, ["mean", "std", "epistemic", "aleatoric", ...ends(row)]);
  const all = [...(row.members ?? []), row.mean];
  const least = Math.min(...all), width = Math.max(...all) - least;
  const share = (value) => width > 0 ? 0.05 + 0.95 * (value - least) / width : 0.5;
  at("ensemble").replaceChildren(bar("mean", share(row.mean), short(row.mean)));
  at("members").replaceChildren(...(row.members ?? []).map((value, place) =>
    make("div", { className: "member" }, bar(`Member ${place}`, share(value), short(value)))));
}

function showQuantiles(answer, row) {
  at("label").textContent = short(row.prediction);
  showNumbers(row, ["prediction", "width", "epistemic", ...ends(row)]);
  const every = [row.quantiles, ...(row.members ?? [])].flat();
  const least = Math.min(...every), width = Math.max(...every) - least;
  const share = (value) => width > 0 ? 0.05 + 0.95 * (value - least) / width : 0.5;
  const bars = (values) => values.map((value, place) => bar(`quantile ${answer.levels[place]}`, share(value), short(value)));
  at("ensemble").replaceChildren(...bars(row.quantiles));
  at("members").replaceChildren(...(row.members ?? []).map((values, place) => make("div", { className: "member" },
    make("p", { textContent: `Member ${place}` }), ...bars(values))));
}

async function ask() {
  if (about.takes === "image" && !image) { tell("Choose an image first.", true); return; }
  tell("Asking …");
  try {
    const response = await fetch("predict", request());
    const answer = await response.json();
    if (!response.ok) throw new Error(answer.error);
    const row = answer.predictions[0];
    if (about.task !== "regression") showClasses(answer, row);
    else if (answer.levels) showQuantiles(answer, row);
    else showNumber(row);
    at("guarantee").textContent = guarantee(row);
    at("guarantee").hidden = !at("guarantee").textContent;
    at("defer").hidden = row.defer !== true;
    at("defer").textContent = "Deferred: more uncertain than the threshold. Ask somebody who knows.";
    at("answer").hidden = false;
    tell("");
  } catch (error) {
    at("answer").hidden = true;
    tell(error.message, true);
  }
}

at("ask").addEventListener("submit", (event) => { event.preventDefault(); ask(); });
fetch("metadata").then((response) => response.json()).then((found) => { about = found; build(); })
  .catch((error) => tell(`The service does not answer: ${error.message}`, true));
