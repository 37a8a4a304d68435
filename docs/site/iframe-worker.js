/*
 * Search on pages that are read from a folder: browsers start no worker there, so a hidden frame of the same page takes
 * its place. The frame has what the worker of the search uses: messages and `importScripts`.
 */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      // Messages that come before the script has been loaded wait for it.
      this.waiting = [];
      frame.onload = () => {
        const inside = frame.contentWindow;
        inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }));
        inside.importScripts = (...urls) => urls.reduce((before, each) => before.then(() => load(inside, each)), Promise.resolve());
        load(inside, url).then(() => {
          this.inside = inside;
          this.waiting.splice(0).forEach(data => this.postMessage(data));
        });
      };
      document.documentElement.append(frame);
    }

    postMessage(data) {
      if (this.inside) this.inside.dispatchEvent(new MessageEvent("message", { data }));
      else this.waiting.push(data);
    }
  };

  function load(inside, url) {
    return new Promise((resolve, reject) => {
      const script = inside.document.createElement("script");
      Object.assign(script, { src: new URL(url, location), onload: resolve, onerror: reject });
      inside.document.documentElement.append(script);
    });
  }
}
