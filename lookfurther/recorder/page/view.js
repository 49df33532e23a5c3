/* What the page shows of the server's messages. */
const STATE_LABELS = {
  ready: "Ready", playing: "Recording", paused: "Paused", rewinding: "Rewinding", over: "Ended",
  saving: "Verifying", replaying: "Replay", offline: "Offline", refused: "Busy", watching: "Live",
};
const formatClock = (seconds) => Math.floor(seconds / 60) + ":" + String(Math.floor(seconds % 60)).padStart(2, "0");
const formatCount = new Intl.NumberFormat("en").format;
const formatScore = (value) => (Number.isInteger(value) ? formatCount(value)
  : value.toFixed(Math.abs(value) < 10 ? 3 : 1));

function onHello(message) {
  hello = { buttons: [], ...message };
  retry = 500;
  document.title = message.title + " · lookfurther";
  document.body.dataset.mode = message.mode;
  document.body.classList.toggle("turns", !!message.turns);
  setText("title", message.title);
  setText("env", message.env);
  setText("set", message.set ?? "");
  $("set").title = message.set ?? "";
  $("rewind").title = message.rewind ? "Hold to rewind"
    : "Rewind is not available: this environment is not deterministic";
  showKeys(hello.buttons);
  releaseKeys();
  fit();
}

function setStatus(message) {
  status = { ...status, ...message };
  const { state, steps = 0 } = status;
  setText("score", formatScore(status.score ?? 0));
  setText("steps", formatCount(steps));
  setText("time", formatClock((status.frames ?? 0) / (hello ? hello.fps : 60)));
  setText("chip", (state === "replaying" ? "▶ replay, step " : "◀◀ step ") + formatCount(steps));
  showLives(status.lives);
  /* the rest changes rarely; updating it fifteen times per second would be expensive */
  const { speed, rewind, broken, begun } = status;
  const shown = [state, speed, rewind, broken, begun, !!steps, !!hello, refused].join();
  if (shown === setStatus.shown) return;
  setStatus.shown = shown;
  const isLive = !["offline", "refused", "saving", "replaying"].includes(state);
  const isWaiting = ["paused", "ready"].includes(state);
  document.body.dataset.state = state;
  setText("state", STATE_LABELS[state] ?? state);
  $("pause").firstChild.textContent = !isWaiting ? "Pause" : steps ? "Continue" : "Start";
  $("pause").disabled = $("step").disabled = !isLive || state === "over";
  $("rewind").disabled = !isLive || !rewind || !begun;
  $("rewind").lastChild.textContent = rewind === false && isLive ? "not available" : "hold R";
  $("save").disabled = $("discard").disabled = !isLive || !steps;
  for (const button of $("speeds").children) {
    button.setAttribute("aria-checked", Number(button.dataset.speed) === speed);
  }
  $("chip").hidden = !["rewinding", "replaying"].includes(state);
  showOverlay();
}

function showLives(lives) {
  const row = $("lives");
  if (row.dataset.lives === String(lives)) return;
  row.dataset.lives = lives;
  row.replaceChildren(...Array.from({ length: Math.min(lives ?? 0, 8) }, () => makeElement("i")));
  row.setAttribute("aria-label", lives ? lives + " lives" : "");
}

/* Each overlay: headline, detail, look. */
const OVERLAYS = {
  offline: () => ["Connection lost", (hello?.mode === "play" ? "Your episode is kept. " : "") + "Reconnecting…", "wheel"],
  refused: () => ["Already in use", refused, "again"],
  ready: () => [status.steps ? "Press a key to continue" : "Press a key to start", "", "bare"],
  paused: () => ["Paused", "Press P to continue"],
  over: () => [
    status.broken ? "The environment failed" : "The episode has ended",
    "Save it, discard it, or " + (status.rewind ? "hold R to rewind." : "start again."),
    "choices",
  ],
  saving: () => ["Verifying by replay", "Every frame and reward is replayed and compared.", "wheel"],
  replaying: () => ["", "", "replay"],
};
const CHOICES = {
  choices: () => [["Save episode", "go", save], ["Discard", "drop", discard]],
  again: () => [["Try again", "go", () => { refused = ""; connect(); }]],
  replay: () => [["Close replay", "", () => send("stop")]],
};
function showOverlay() {
  const { state } = status;
  const overlay = (hello || ["refused", "offline"].includes(state)) && OVERLAYS[state];
  $("overlay").hidden = !overlay;
  if (!overlay) return;
  const [headline, detail, look] = overlay();
  const isFirst = !hello && state === "offline";
  setText("headline", isFirst ? "Connecting" : headline);
  setText("detail", isFirst ? "" : detail);
  $("wheel").hidden = look !== "wheel";
  $("overlay").classList.toggle("bare", look === "bare");
  $("overlay").classList.toggle("clear", look === "replay"); // the game is to be seen
  const choices = (CHOICES[look] ?? (() => []))();
  $("choices").hidden = !choices.length;
  $("choices").replaceChildren(...choices.map(([text, tone, act]) => {
    const button = makeElement("button", "act " + tone, text);
    button.onclick = act;
    return button;
  }));
}

/* recorded episodes */
function showEpisodes(episodes) {
  const best = Math.max(...episodes.map((episode) => episode.return));
  const before = $("episodes").childElementCount;
  setText("count", episodes.length ? `Recorded · ${episodes.length}` : "Recorded");
  $("empty").hidden = episodes.length > 0;
  const rows = episodes.map((episode, i) => {
    const isBest = episode.return === best && episodes.length > 1;
    const row = makeEpisodeRow(episode, i, isBest);
    if (before && i >= before) row.className = "new";
    return row;
  });
  $("episodes").replaceChildren(...rows.reverse());
}
function makeEpisodeRow(episode, i, isBest) {
  const row = makeElement("li"), middle = makeElement("div");
  const picture = episode.picture ? makeElement("img", "thumb") : makeElement("span", "thumb", "#" + (i + 1));
  if (episode.picture) {
    picture.src = episode.picture;
    picture.alt = "";
  }
  middle.append(makeElement("b", "", formatScore(episode.return)));
  if (isBest) middle.append(makeElement("span", "star", "★ best"));
  const facts = makeElement("small", "", `${formatCount(episode.steps)} steps · `);
  const mark = makeElement("span", "mark " + (episode.verified ? "yes" : "no"), episode.verified ? "✓ verified" : "differs");
  mark.title = episode.verified ? "Replayed: every frame and reward is equal" : episode.mismatch || "Not replayed yet";
  facts.append(mark);
  middle.append(facts);
  const replay = makeIcon("▶", `Replay episode ${i + 1}`, () => send("replay", { episode: episode.id }));
  const text = `Episode ${i + 1}, ${formatCount(episode.steps)} steps with a score of ${formatScore(episode.return)}, will be removed from the disk.`;
  const remove = makeIcon("✕", `Delete episode ${i + 1}`, () => {
    askOnce("Delete this episode?", text, ["Cancel", "Delete"], () => send("delete", { episode: episode.id }));
  });
  row.append(picture, middle, replay, remove);
  return row;
}
function makeIcon(text, label, act) {
  const button = makeElement("button", "icon", text);
  button.title = label;
  button.setAttribute("aria-label", label);
  button.onclick = () => {
    if (status.state === "playing") send("pause");
    button.blur();
    act();
  };
  return button;
}

/* one question before something is lost */
let onAgree = null;
function askOnce(title, text, [no, yes], act) {
  setText("suretitle", title);
  setText("suretext", text);
  setText("sureno", no);
  setText("sureyes", yes);
  onAgree = act;
  $("sure").returnValue = "no";
  $("sure").showModal();
}
$("sure").onclose = () => { if ($("sure").returnValue === "yes") onAgree(); };

function showNotice(text, tone) {
  const note = makeElement("div", tone, text);
  $("notices").append(note);
  setTimeout(() => note.remove(), tone === "bad" ? 9000 : 4500);
}
