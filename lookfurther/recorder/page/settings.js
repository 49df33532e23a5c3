"use strict";
/* Elements, and the settings that the browser stores: theme and keys.

   They are in a cookie: unlike localStorage, it does not depend on the port, which is a new one
   each time the recorder starts. Other local pages may write cookies, so every value is checked. */
const $ = (id) => document.getElementById(id);
function makeElement(tag, className, text) {
  const element = document.createElement(tag);
  element.className = className || "";
  element.textContent = text ?? "";
  return element;
}
function setText(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text;
}

const COOKIE = "lookfurther-recorder";
const COOKIE_LIMIT = 3000; // characters; browsers accept 4096
const THEMES = { auto: "◐", light: "☀", dark: "☾" };
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

function readSettings() {
  let stored = null;
  try {
    const text = document.cookie.split("; ").find((part) => part.startsWith(COOKIE + "="));
    stored = JSON.parse(decodeURIComponent(text.slice(COOKIE.length + 1)));
  } catch { /* none, or not ours */ }
  const settings = { theme: "auto", keys: {} };
  if (!isObject(stored)) return settings;
  if (Object.hasOwn(THEMES, stored.theme)) settings.theme = stored.theme;
  for (const [env, keys] of Object.entries(isObject(stored.keys) ? stored.keys : {})) {
    const known = Object.entries(isObject(keys) ? keys : {});
    settings.keys[env] = Object.fromEntries(known.filter(([, code]) => /^\w{1,20}$/.test(code)));
  }
  return settings;
}

const settings = readSettings();
function writeSettings() {
  let text = encodeURIComponent(JSON.stringify(settings));
  while (text.length > COOKIE_LIMIT && Object.keys(settings.keys).length > 1) {
    delete settings.keys[Object.keys(settings.keys)[0]]; // the environment changed longest ago
    text = encodeURIComponent(JSON.stringify(settings));
  }
  document.cookie = `${COOKIE}=${text}; path=/; max-age=31536000; samesite=strict`;
}

/* theme: that of the system, light, or dark */
function applyTheme() {
  document.documentElement.dataset.theme = settings.theme;
  $("theme").textContent = THEMES[settings.theme];
  $("theme").setAttribute("aria-label", `Theme: ${settings.theme}`);
  $("theme").title = `Theme: ${settings.theme}`;
}
$("theme").onclick = () => {
  const names = Object.keys(THEMES);
  settings.theme = names[(names.indexOf(settings.theme) + 1) % names.length];
  applyTheme();
  writeSettings();
};
applyTheme();

/* keys: of each environment, the code of each button that the player changed */
const chosenKeys = () => settings.keys[hello.env] ?? {};
const buttonCodes = (button) => (Object.hasOwn(chosenKeys(), button.name)
  ? [chosenKeys()[button.name]] : button.codes);
function assignKey(name, code) {
  const old = buttonCodes(hello.buttons.find((button) => button.name === name))[0];
  const keys = { ...chosenKeys() };
  for (const other of hello.buttons) {
    if (other.name !== name && buttonCodes(other).includes(code)) keys[other.name] = old; // swap
  }
  keys[name] = code;
  delete settings.keys[hello.env]; // the newest is last
  settings.keys[hello.env] = keys;
  writeSettings();
}
function resetKeys() {
  delete settings.keys[hello.env];
  writeSettings();
}

/* the help overlay, in which keys are changed */
const KEY_LABELS = {
  ArrowUp: "↑", ArrowDown: "↓", ArrowLeft: "←", ArrowRight: "→", Space: "space",
  ShiftLeft: "shift", ShiftRight: "shift", Comma: ",",
};
const keyLabel = (code) => KEY_LABELS[code] ?? code.replace(/^(Key|Digit)/, "").replace("Numpad", "num ");
const actionLabel = (name) => (/^\d+$/.test(name) ? "action " + name : name);
const HELP = [
  ["P", "pause or continue", "timed"],
  ["hold R", "rewind; play on from there", "play"],
  [".", "play one step with the held keys", "timed play"],
  ["− =", "slower, faster", "timed"],
  ["Enter", "save the episode, on the number pad too", "play"],
  ["Delete", "discard the episode", "play"],
  ["?", "this help", ""],
  ["Esc", "close a replay or a dialog", "play"],
];
let remapped = null; // the name of the button that waits for its new key

function showHelp() {
  if (!hello || $("sure").open || $("help").open) return;
  if (status.state === "playing") send("pause");
  releaseKeys();
  const isWatching = hello.mode === "watch";
  setText("helptext", isWatching ? "The agent plays, next to the expert if there is one."
    : "Press a key to start. Every step is kept; a saved episode is verified by replay."
      + " Gamepads and the keys on the screen work too. Recorded episodes can be replayed and deleted.");
  $("commands").replaceChildren(...HELP.map(([key, text, classes]) => {
    const row = makeElement("tr", classes), cell = makeElement("td");
    cell.append(makeElement("kbd", "", key));
    row.append(cell, makeElement("td", "", text));
    return row;
  }));
  showRemap(null);
  $("help").returnValue = "close";
  $("help").showModal();
}
function showRemap(waiting) {
  remapped = waiting;
  $("remap").replaceChildren(...hello.buttons.map((button) => {
    const isWaiting = button.name === waiting;
    const row = makeElement("button", isWaiting ? "waiting" : "", actionLabel(button.name));
    row.type = "button";
    row.dataset.name = button.name;
    row.append(makeElement("kbd", "", isWaiting ? "press a key" : buttonCodes(button).map(keyLabel).join(" ")));
    row.onclick = () => showRemap(button.name);
    return row;
  }));
}
$("help").addEventListener("keydown", (event) => {
  if (remapped === null) return;
  event.preventDefault();
  event.stopPropagation();
  const isReserved = Object.hasOwn(COMMANDS, event.code) || event.code === "KeyR";
  if (isReserved) showNotice(`${keyLabel(event.code)} has another use: choose another key.`, "bad");
  else if (event.code !== "Escape") assignKey(remapped, event.code);
  showRemap(null);
  showKeys(hello.buttons);
});
$("help").onclose = () => {
  if ($("help").returnValue === "reset") {
    resetKeys();
    showKeys(hello.buttons);
    showNotice("The keys are as at the start.", "good");
  }
};
$("helpbutton").onclick = showHelp;
