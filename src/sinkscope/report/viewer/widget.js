// A notebook's side of the view: a sandboxed frame with the page, and its state kept in step with the widget's.

function render({ model, el }) {
  const frame = document.createElement("iframe");
  frame.title = "sinkscope: received attention, step by step";
  frame.setAttribute("sandbox", "allow-scripts allow-downloads");
  frame.style.cssText = `width: 100%; height: ${model.get("height")}px; border: 0; border-radius: 12px;`;
  frame.srcdoc = model.get("page");
  const heard = (event) => {
    const said = event.source === frame.contentWindow && event.data?.sinkscope;
    if (!said || JSON.stringify(said) === JSON.stringify(model.get("state"))) return;
    model.set("state", said);
    model.save_changes();
  };
  // The frame has an origin of its own that cannot be named; what is sent is no secret.
  const tell = () => frame.contentWindow?.postMessage({ sinkscope: model.get("state") }, "*");
  const resize = () => { frame.style.height = `${model.get("height")}px`; };
  addEventListener("message", heard);
  model.on("change:state", tell);
  model.on("change:height", resize);
  el.append(frame);
  return () => {
    removeEventListener("message", heard);
    model.off("change:state", tell);
    model.off("change:height", resize);
  };
}

export default { render };
