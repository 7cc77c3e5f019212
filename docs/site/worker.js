// SPDX-License-Identifier: Apache-2.0
// Search in pages that are opened as files, where browsers allow no workers: a Worker whose script runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(script) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc = "<!doctype html>";
      this.loaded = new Promise(done => this.frame.addEventListener("load", done, {once: true})).then(() => this.start(script));
      document.body.append(this.frame);
    }

    start(script) {
      const inside = this.frame.contentWindow;
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", {data}));
      inside.importScripts = (...scripts) => scripts.reduce((before, next) => before.then(() => this.load(next)), Promise.resolve());
      return this.load(script);
    }

    load(script) {
      return new Promise((done, failed) => {
        const element = this.frame.contentDocument.createElement("script");
        element.src = script;
        element.onload = done;
        element.onerror = () => failed(new Error(`${script} cannot be loaded`));
        this.frame.contentDocument.head.append(element);
      });
    }

    postMessage(data) {
      this.loaded.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", {data})));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
