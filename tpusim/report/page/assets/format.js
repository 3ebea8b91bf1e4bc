// Numbers as text. Units come with the data.

const whole = (value) => Math.round(value).toLocaleString("en-US");

function three(value) {
  const size = Math.abs(value);
  if (value === 0) return "0";
  if (size < 0.001) return value.toExponential(1);
  const decimals = size < 0.9995 ? 3 : size < 9.995 ? 2 : size < 99.95 ? 1 : 0;
  return value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

function percent(ratio) {
  if (ratio === 0) return "0";
  return ratio >= 0.9995 ? whole(100 * ratio) : (100 * ratio).toFixed(1);
}

// A value as its column writes it, without the unit.
function shown(column, value) {
  if (value === null || value === undefined || value === "") return "–";
  if (column.style === "text") return String(value);
  if (column.style === "percent") return percent(value);
  return column.style === "count" ? whole(value / column.divide) : three(value / column.divide);
}

const withUnit = (column, value) =>
  `${shown(column, value)}${column.unit && value !== null ? ` ${column.unit}` : ""}`;

const nameWithUnit = (column) => (column.unit ? `${column.label} (${column.unit})` : column.label);

// The label of an axis tick: as many digits as its step needs, and none more.
function tickText(value, step) {
  const decimals = Math.max(0, Math.min(6, -Math.floor(Math.log10(step) + 1e-9)));
  return value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

const logText = (value) => (value >= 1 ? whole(value) : String(Number(value.toPrecision(2))));

// A name cut at the left, as its end is what tells it from its neighbours.
function shortened(name, most) {
  const letters = [...name];
  return letters.length <= most ? name : `…${letters.slice(1 - most).join("")}`;
}
