// Lets the search run in a page that is opened from a disk, where a browser starts no worker: the worker's script runs
// in a hidden frame, which has the page's own origin. The offline plugin loads this file in place of one from another
// host because its name holds "iframe-worker".
"use strict";

class FrameWorker extends EventTarget {
  constructor(address) {
    super();
    const script = document.createElement("script");
    script.src = address;
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    this.frame.srcdoc = script.outerHTML;
    this.loaded = new Promise((resolve) => {
      this.frame.onload = () => resolve(this.frame.contentWindow);
    });
    document.body.append(this.frame);
    this.loaded.then((inside) => {
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    });
  }

  postMessage(data) {
    this.loaded.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) })));
  }

  terminate() {
    this.frame.remove();
  }
}

if (location.protocol === "file:") window.Worker = FrameWorker;
