// From values to pixels, and round values for ticks.

const linear = (d0, d1, r0, r1) => (value) => r0 + ((value - d0) / (d1 - d0 || 1)) * (r1 - r0);
const logarithmic = (d0, d1, r0, r1) => {
  const inner = linear(Math.log(d0), Math.log(d1), r0, r1);
  return (value) => inner(Math.log(value));
};

// Round values from low to high, about `count` of them: steps of 1, 2 or 5 times a power of ten.
function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((each) => each >= rough * 0.999);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return { step, values: Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => (first + i) * step) };
}

// Powers of ten from low to high, or with their doubles and quintuples where there are few.
function logTicks(low, high, count) {
  const decades = Math.log10(high / low);
  const factors = decades * 3 <= count + 2 ? [1, 2, 5] : [1];
  const values = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
    values.push(...factors.map((factor) => factor * 10 ** power));
  }
  return values.filter((value) => value >= low * 0.999 && value <= high * 1.001);
}

const canvas = document.createElement("canvas").getContext("2d");

function textWidth(text, size) {
  canvas.font = `${size}px system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif`;
  return canvas.measureText(text).width;
}
