/* Player input: keyboard, keys on the screen, gamepads. */
const SPEEDS = [0.25, 0.5, 1, 2, 4];
let number = 0, sent = "", keyOf = {}, heldOnGamepad = new Set();
const heldCodes = new Set(), heldOnKeyboard = new Set(), heldOnScreen = new Set();

function sendKeys() {
  const held = [...new Set([...heldOnKeyboard, ...heldOnGamepad, ...heldOnScreen])];
  for (const key of document.querySelectorAll(".key")) key.classList.toggle("down", held.includes(key.dataset.name));
  const text = held.slice().sort().join();
  if (text === sent) return;
  sent = text;
  send("keys", { number: ++number, held });
}
function releaseKeys() {
  for (const hand of [heldCodes, heldOnKeyboard, heldOnGamepad, heldOnScreen]) hand.clear();
  sent = "?";
  sendKeys();
  rewind(false);
}

/* commands */
let isRewinding = false;
function rewind(on) {
  if (on === isRewinding) return;
  isRewinding = on;
  $("rewind").classList.toggle("down", on);
  send("rewind", { on });
}
const pause = () => send(["paused", "ready"].includes(status.state) ? "resume" : "pause");
const save = () => { if (!$("save").disabled) send("save"); };
function discard() {
  if ($("discard").disabled) return;
  if (status.state === "playing") send("pause");
  const text = `${formatCount(status.steps)} steps with a score of ${formatScore(status.score)} will be deleted.`;
  askOnce("Discard this episode?", text, ["Keep playing", "Discard"], () => send("discard"));
}
function changeSpeed(by) {
  const next = SPEEDS[SPEEDS.indexOf(status.speed) + by];
  if (next) send("speed", { speed: next });
}
const COMMANDS = {
  KeyP: pause,
  Period: () => send("step"),
  Enter: save,
  NumpadEnter: save,
  Delete: discard,
  Minus: () => changeSpeed(-1),
  Equal: () => changeSpeed(1),
  Slash: showHelp,
  Escape: () => { if (status.state === "replaying") send("stop"); },
};

/* keyboard */
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || $("sure").open || $("help").open || !hello) return;
  const focused = document.activeElement;
  const isClick = ["Space", "Enter", "NumpadEnter"].includes(event.code);
  if (isClick && focused && focused.matches("button:focus-visible")) return;
  heldCodes.add(event.code);
  const name = keyOf[event.code];
  if (name !== undefined) {
    heldOnKeyboard.add(name);
    sendKeys();
  } else if (event.code === "KeyR") rewind(true);
  else if (!Object.hasOwn(COMMANDS, event.code)) return;
  else if (!event.repeat || event.code === "Period") COMMANDS[event.code]();
  event.preventDefault();
});
addEventListener("keyup", (event) => {
  heldCodes.delete(event.code);
  if (event.code === "KeyR") rewind(false);
  const name = keyOf[event.code];
  if (name === undefined) return;
  if (![...heldCodes].some((code) => keyOf[code] === name)) heldOnKeyboard.delete(name);
  sendKeys();
});
function onBlur() {
  releaseKeys();
  if (status.state === "playing" && hello && !hello.turns && hello.mode === "play") send("pause");
}
addEventListener("blur", onBlur);
document.addEventListener("visibilitychange", () => { if (document.hidden) onBlur(); });

/* gamepads: d-pad and left stick are the arrows, the face buttons are the other keys in order */
const GAMEPAD_KEYS = { 12: "ArrowUp", 13: "ArrowDown", 14: "ArrowLeft", 15: "ArrowRight" };
let isPadRewinding = false, isPadPausing = false;
function pollGamepads() {
  requestAnimationFrame(pollGamepads);
  const pad = hello && navigator.getGamepads && [...navigator.getGamepads()].find((one) => one && one.connected);
  if (!pad) return;
  const on = (i) => !!pad.buttons[i] && pad.buttons[i].pressed, [x, y] = pad.axes;
  const codes = Object.keys(GAMEPAD_KEYS).filter(on).map((i) => GAMEPAD_KEYS[i]);
  if (x < -0.5) codes.push("ArrowLeft");
  if (x > 0.5) codes.push("ArrowRight");
  if (y < -0.5) codes.push("ArrowUp");
  if (y > 0.5) codes.push("ArrowDown");
  const directions = hello.buttons.filter((button) => button.codes.some((code) => codes.includes(code)));
  const others = hello.buttons.filter((button) => !button.codes[0].startsWith("Arrow"));
  heldOnGamepad = new Set(directions.map((button) => button.name));
  [0, 1, 2, 3].forEach((i) => { if (on(i) && others[i]) heldOnGamepad.add(others[i].name); });
  sendKeys();
  const back = on(4) || on(6);
  if (back !== isPadRewinding) rewind(isPadRewinding = back);
  if (on(9) && !isPadPausing) pause();
  isPadPausing = on(9);
}
addEventListener("gamepadconnected", () => showNotice("Gamepad connected: LB rewinds, Start pauses.", "good"));

/* keys on the screen: arrows by their default key, wherever the player moved it */
const KEY_POSITIONS = { ArrowUp: [2, 1], ArrowLeft: [1, 2], ArrowDown: [2, 2], ArrowRight: [3, 2] };
function showKeys(buttons) {
  keyOf = {};
  const arrows = makeElement("div", "arrows"), others = makeElement("div", "others");
  const isRow = !buttons.some((button) => ["ArrowUp", "ArrowDown"].includes(button.codes[0]));
  for (const button of buttons) {
    for (const code of buttonCodes(button)) keyOf[code] = button.name;
    const place = KEY_POSITIONS[button.codes[0]], key = makeKey(button);
    if (place) {
      key.style.gridColumn = place[0];
      key.style.gridRow = isRow ? 1 : place[1];
    }
    (place ? arrows : others).append(key);
  }
  const hasLetters = Object.keys(keyOf).length > buttons.length;
  const hint = makeElement("span", "hint", (hasLetters ? "or W A S D, " : "") + "or a gamepad");
  document.body.classList.toggle("has-arrows", arrows.childElementCount > 0);
  $("keys").replaceChildren(...[arrows, others].filter((part) => part.childElementCount), hint);
}
function makeKey(button) {
  const code = buttonCodes(button)[0], key = makeElement("button", "key");
  key.dataset.name = button.name;
  key.tabIndex = -1;
  key.setAttribute("aria-label", button.name + ", key " + keyLabel(code));
  key.append(makeElement("span", "cap" + (code === "Space" ? " long" : ""), keyLabel(code)));
  const isArrow = KEY_POSITIONS[code] && actionLabel(button.name) === code.slice(5).toLowerCase();
  if (!isArrow) key.append(makeElement("span", "", actionLabel(button.name)));
  key.onpointerdown = (event) => {
    key.setPointerCapture(event.pointerId);
    heldOnScreen.add(button.name);
    sendKeys();
    event.preventDefault();
  };
  key.onpointerup = key.onpointercancel = () => {
    heldOnScreen.delete(button.name);
    sendKeys();
  };
  return key;
}

for (const speed of SPEEDS) {
  const button = makeElement("button", "", { 0.25: "¼×", 0.5: "½×" }[speed] ?? speed + "×");
  button.dataset.speed = speed;
  button.setAttribute("role", "radio");
  button.setAttribute("aria-label", speed + " times");
  button.onclick = () => send("speed", { speed });
  $("speeds").append(button);
}
$("pause").onclick = pause;
$("step").onclick = () => send("step");
$("save").onclick = save;
$("discard").onclick = discard;
$("rewind").onpointerdown = (event) => {
  $("rewind").setPointerCapture(event.pointerId);
  rewind(true);
};
$("rewind").onpointerup = $("rewind").onpointercancel = () => rewind(false);
for (const button of document.querySelectorAll("aside button")) {
  button.addEventListener("pointerup", () => button.blur());
}
connect();
pollGamepads();
