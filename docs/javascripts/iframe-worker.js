// The search runs in a worker, and a browser starts none from file://. This one runs the same
// script in a hidden frame of the page, so that the search works without a server.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inner = frame.contentWindow;
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = new Promise((resolve, reject) => {
        const script = inner.document.createElement("script");
        script.src = url;
        script.onload = () => resolve(inner);
        script.onerror = () => reject(new Error(`cannot load ${url}`));
        inner.document.body.append(script);
      });
    }

    postMessage(data) {
      this.ready.then((inner) => inner.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
