// Colours: two ramps that run from the page's own background to its strongest contrast, safe for colour-blind readers
// (lightness alone orders them), and for each colour the text that can be read on it.

const RAMPS = {
  light: ["#f8f7f4", "#fdebcf", "#fccd93", "#f9a06b", "#ee6f62", "#cf4173", "#9d2a7c", "#641f73", "#2a1250"],
  dark: ["#191b22", "#2a1f45", "#4f2374", "#822a80", "#b93a79", "#e5606a", "#f98f62", "#fcc48a", "#fdf3c8"],
};
// Differences: blue is less, orange is more, the page's ground is none. Lightness and hue both tell the sides apart.
const SIGNED = {
  light: ["#08426f", "#2f7ab3", "#9cc4e4", "#f8f7f4", "#f3b48a", "#cf6a2c", "#7d2c08"],
  dark: ["#b3dcff", "#5aa3dd", "#28517a", "#191b22", "#7a3d1a", "#dd7f43", "#ffd0ac"],
};
const PALETTES = {
  light: { page: "#f2f1ed", surface: "#ffffff", ink: "#1c1b22", soft: "#5b5966", line: "#d9d6cf", blank: "#efede8",
    accent: "#0b5fa5", path: "#00798c", cursor: "#0b5fa5", raised: "#f8f7f4" },
  dark: { page: "#0f1015", surface: "#17181f", ink: "#f0eee8", soft: "#adabb8", line: "#34353f", blank: "#22232b",
    accent: "#7cc4ff", path: "#4fd1c5", cursor: "#7cc4ff", raised: "#1f2028" },
};

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const printing = matchMedia("print");
let paper = false; // between beforeprint and afterprint

function theme() {
  return prefersDark.matches && !printing.matches && !paper ? "dark" : "light";
}

function palette() {
  return PALETTES[theme()];
}

function channels(hex) {
  return [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
}

// Relative luminance of WCAG 2, from 0 to 1.
function luminance(rgb) {
  const [r, g, b] = rgb.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

// 256 colours of a ramp: css, packed (for ImageData, little endian), and the readable text colour.
function makeRamp(anchors) {
  const stops = anchors.map(channels);
  const ramp = { css: [], ink: [], packed: new Uint32Array(256) };
  for (let i = 0; i < 256; i++) {
    const at = (i / 255) * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2), part = at - low;
    const rgb = stops[low].map((c, j) => Math.round(c + (stops[low + 1][j] - c) * part));
    ramp.css.push(`rgb(${rgb.join(",")})`);
    ramp.packed[i] = (255 << 24) | (rgb[2] << 16) | (rgb[1] << 8) | rgb[0];
    // Black on white is 21; whichever of both stands out more has at least 4.5 on any colour.
    ramp.ink.push(luminance(rgb) > 0.179 ? "#000000" : "#ffffff");
  }
  return ramp;
}

const madeRamps = { light: makeRamp(RAMPS.light), dark: makeRamp(RAMPS.dark) };
const madeSigned = { light: makeRamp(SIGNED.light), dark: makeRamp(SIGNED.dark) };

function ramp(signed = false) {
  return (signed ? madeSigned : madeRamps)[theme()];
}

// 0 … top → 0 … 255. Up to uniform attention (1) colours stay pale and linear; above it each doubling is one more step.
const PALE = 0.16;

function shade(value, top) {
  const part = value <= 1 ? PALE * value : PALE + ((1 - PALE) * Math.log(value)) / Math.log(Math.max(2, top));
  return Math.max(0, Math.min(255, Math.round(255 * part)));
}

// −top … top → 0 … 255, logarithmic on either side of none.
function shadeSigned(value, top) {
  const part = Math.sign(value) * Math.log1p(Math.abs(value)) / Math.log1p(Math.max(1, top));
  return Math.max(0, Math.min(255, Math.round(127.5 * (1 + part))));
}

function shadeOf(field, value, top) {
  return field.signed ? shadeSigned(value, top) : shade(value, top);
}

function packedColour(hex) {
  const [r, g, b] = channels(hex);
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}

function signedTicks(top) {
  const ends = [1, 4, 16, 64].filter((tick) => tick <= top).slice(-2);
  return [...ends.map((tick) => -tick).reverse(), 0, ...ends];
}

function ticks(top) {
  return (top > 20 ? [1, 4, 16, 64, 256, 1024] : [0, 1, 2, 4, 8, 16]).filter((tick) => tick <= top * 1.02);
}
