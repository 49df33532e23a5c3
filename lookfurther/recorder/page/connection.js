/* The connection to the server, and the canvas. */
const screen_ = $("screen");
let hello = null, status = { state: "offline" }, retry = 500, refused = "";

/* Both run in a worker: after a key event, browsers delay other work of a page by about a frame. */
function renderFrames() {
  let socket = null, canvas = null, context = null, image = null, words = null;
  let drawn = 0, acknowledged = 0, shown = 0, since = 0;
  onmessage = ({ data }) => {
    if (data.canvas) {
      canvas = data.canvas;
      context = canvas.getContext("2d", { alpha: false, desynchronized: true });
    } else if (data.address) connect(data.address);
    else send(data.text);
  };
  function connect(address) {
    drawn = acknowledged = 0;
    socket = new WebSocket(address);
    socket.binaryType = "arraybuffer";
    socket.onmessage = ({ data }) => typeof data === "string" ? postMessage({ text: data }) : draw(data);
    socket.onclose = () => postMessage({ closed: true });
  }
  function send(text) {
    if (socket && socket.readyState === WebSocket.OPEN) socket.send(text);
  }
  /* a 12-byte header (frame, keys, width, height), then RGB */
  function draw(buffer) {
    const head = new DataView(buffer), width = head.getUint16(8, true), height = head.getUint16(10, true);
    if (!image || image.width !== width || image.height !== height) {
      canvas.width = width;
      canvas.height = height;
      image = context.createImageData(width, height);
      words = new Uint32Array(image.data.buffer);
      postMessage({ size: { width, height } });
    }
    const rgb = new Uint8Array(buffer, 12);
    for (let i = 0, j = 0; i < words.length; i++, j += 3) {
      words[i] = 0xff000000 | rgb[j + 2] << 16 | rgb[j + 1] << 8 | rgb[j];
    }
    context.putImageData(image, 0, 0);
    drawn = head.getUint32(0, true);
    since = performance.now();
  }
  function acknowledge() {
    if (drawn !== acknowledged) {
      acknowledged = drawn;
      shown++;
      send(JSON.stringify({ kind: "seen", number: drawn, wait: Math.round(performance.now() - since) }));
    }
    requestAnimationFrame(acknowledge);
  }
  requestAnimationFrame(acknowledge);
  setInterval(() => { postMessage({ shown }); shown = 0; }, 1000);
}
const workerCode = new Blob([`(${renderFrames})()`], { type: "text/javascript" });
const renderWorker = new Worker(URL.createObjectURL(workerCode));
const offscreen = screen_.transferControlToOffscreen();
let size = { width: screen_.width, height: screen_.height };
renderWorker.postMessage({ canvas: offscreen }, [offscreen]);
renderWorker.onmessage = ({ data }) => {
  if (data.text) onMessage(JSON.parse(data.text));
  else if (data.closed) onClose();
  else if (data.size) {
    size = data.size;
    fit();
  } else $("rate").textContent = data.shown ? data.shown + " fps" : "–";
};

function connect() {
  const page = location.href.replace(/^http/, "ws").replace(/[?#].*$/, "");
  renderWorker.postMessage({ address: page + "live" });
}
function onClose() {
  if (refused) return setStatus({ state: "refused" });
  setStatus({ state: "offline" });
  setTimeout(connect, retry);
  retry = Math.min(retry * 1.6, 4000);
}
const send = (kind, more) => renderWorker.postMessage({ text: JSON.stringify({ kind, ...more }) });
function onMessage(message) {
  if (message.kind === "hello") onHello(message);
  else if (message.kind === "status") setStatus(message);
  else if (message.kind === "episodes") showEpisodes(message.episodes);
  else if (message.kind === "notice") showNotice(message.text, message.tone);
  else if (message.kind === "refused") refused = message.text;
}

/* Scale the game to its room: by a whole number of pixels, or smoothly where that wastes room. */
function fit() {
  const viewport = document.querySelector(".viewport"), style = getComputedStyle(viewport);
  const ratio = devicePixelRatio || 1, aspect = hello ? hello.aspect : 1;
  const room = (side, a, b) => (viewport[side] - parseFloat(style[a]) - parseFloat(style[b])) * ratio;
  const wide = room("clientWidth", "paddingLeft", "paddingRight");
  const high = room("clientHeight", "paddingTop", "paddingBottom");
  const { width, height } = size;
  let x = 0, y = Math.floor(high / height);
  while (y >= 1 && (x = Math.max(1, Math.round(y * aspect))) * width > wide) y--;
  const isSmooth = y < 3;
  if (isSmooth) {
    y = Math.min(high / height, wide / (width * aspect));
    x = y * aspect;
  }
  screen_.classList.toggle("smooth", isSmooth && width > 300);
  screen_.style.width = width * x / ratio + "px";
  screen_.style.height = height * y / ratio + "px";
}
new ResizeObserver(fit).observe(document.querySelector(".viewport"));
