// What is wrong with how the page is drawn, in words; an empty list if nothing is.
// `onlyColours`: leave out where things lie, which does not depend on the colour scheme.
(onlyColours) => {
  const faults = new Set();
  const SLACK = 1;
  const LEAST_CONTRAST = 4.5;

  const name = (element) => {
    const classes = element.getAttribute("class");
    const text = [...element.textContent.trim().replace(/\s+/g, " ")].slice(0, 40).join("");
    return `<${element.localName}${classes ? ` class="${classes}"` : ""}> ${text}`;
  };
  const style = (element) => getComputedStyle(element);
  const drawn = (element) => element.getClientRects().length > 0 && !element.closest(".unseen");
  const within = (inner, outer) => inner.left >= outer.left - SLACK && inner.right <= outer.right + SLACK;
  const ancestors = function* (element) {
    for (let at = element.parentElement; at; at = at.parentElement) yield at;
  };
  const scrolls = (element) => ["auto", "scroll"].includes(style(element).overflowX);
  const clips = (element) => style(element).overflowX !== "visible";
  const overflows = (element) => element.scrollWidth > element.clientWidth + SLACK;
  const screen = { left: 0, right: innerWidth };

  const layout = () => {
    const root = document.documentElement;
    if (root.scrollWidth > innerWidth) faults.add(`the page is ${root.scrollWidth} wide, the window ${innerWidth}`);

    for (const element of document.body.querySelectorAll("*:not(svg *)")) {
      if (!drawn(element)) continue;
      const box = element.getBoundingClientRect();
      const scroller = [...ancestors(element)].find((at) => scrolls(at) && overflows(at));
      if (!scroller && !within(box, screen)) faults.add(`outside the window: ${name(element)}`);
      const parent = element.parentElement;
      if (parent !== scroller && !within(box, parent.getBoundingClientRect())) faults.add(`outside its box: ${name(element)}`);
      if (style(element).display === "inline" || !overflows(element)) continue;
      if (!clips(element)) faults.add(`text outside its box: ${name(element)}`);
      else if (!scrolls(element)) faults.add(`cut off: ${name(element)}`);
      else scrollsInVain(element);
    }
    for (const strip of document.querySelectorAll("svg.strip")) marks(strip);
    for (const badge of document.querySelectorAll(".badge")) {
      const hides = (at) => clips(at) && !within(badge.getBoundingClientRect(), at.getBoundingClientRect());
      if ([...ancestors(badge)].some(hides)) faults.add(`a verdict is out of sight: ${name(badge)}`);
    }
    for (const line of document.querySelectorAll(".axis, .words:not(dl)")) apart([...line.children].filter(drawn));
  };

  // A box may scroll where its content cannot be made narrower, never on paper.
  const scrollsInVain = (box) => {
    if (matchMedia("print").matches) faults.add(`cut off on paper: ${name(box)}`);
    for (const child of box.children) {
      const is = child.getBoundingClientRect().width;
      const before = child.getAttribute("style");
      for (const property of ["width", "min-width"]) child.style.setProperty(property, "min-content", "important");
      const least = child.getBoundingClientRect().width;
      before === null ? child.removeAttribute("style") : child.setAttribute("style", before);
      if (is > least + SLACK) faults.add(`scrolls, but could be narrower: ${name(box)}`);
    }
  };

  const marks = (strip) => {
    for (const mark of strip.querySelectorAll("*")) {
      for (const attribute of ["x", "x1", "x2", "cx", "width"]) {
        const value = mark.getAttribute(attribute);
        if (value !== null && !(parseFloat(value) >= 0 && parseFloat(value) <= 100)) {
          faults.add(`${attribute} of a mark is ${value}: ${strip.getAttribute("aria-label")}`);
        }
      }
      if (mark.localName !== "svg" && !within(mark.getBoundingClientRect(), strip.getBoundingClientRect())) {
        faults.add(`a mark lies outside its strip: ${strip.getAttribute("aria-label")}`);
      }
    }
  };

  const apart = (labels) => {
    const boxes = labels.map((label) => label.getBoundingClientRect()).sort((a, b) => a.left - b.left);
    if (boxes.some((box, i) => i && box.left < boxes[i - 1].right)) {
      faults.add(`labels overlap: ${labels.map((label) => label.textContent).join(" | ")}`);
    }
  };

  // ── colours ──────────────────────────────────────────────────────────────────────

  const parsed = (text) => {
    const [red, green, blue, alpha = 1] = text.match(/[\d.]+/g).map(Number);
    return [red, green, blue, alpha];
  };
  const over = ([r, g, b, a], under) => [r, g, b].map((part, i) => a * part + (1 - a) * under[i]);
  const paint = (element) => {
    const found = style(element);
    if (!(element instanceof SVGElement) || element.localName === "svg") return parsed(found.backgroundColor);
    if (found.fill === "none" || element.localName === "text") return [0, 0, 0, 0];
    const [r, g, b, a] = parsed(found.fill);
    return [r, g, b, a * found.fillOpacity * found.opacity];
  };
  const luminance = (colour) => {
    const [r, g, b] = colour.map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, other) => {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };

  const colours = () => {
    const texts = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const element = walker.currentNode.parentElement;
      if (!walker.currentNode.data.trim() || element.closest("title, desc, style") || !drawn(element)) continue;
      const range = document.createRange();
      range.selectNodeContents(walker.currentNode);
      const box = range.getClientRects()[0];
      if (box) texts.push({ element, x: box.left + box.width / 2, y: box.top + scrollY + box.height / 2 });
    }
    // What lies under a text can only be asked where the window is.
    for (let top = 0; top < document.documentElement.scrollHeight; top += innerHeight) {
      scrollTo(0, top);
      for (const { element, x, y } of texts) {
        if (y < scrollY || y >= scrollY + innerHeight) continue;
        const stack = document.elementsFromPoint(x, y - scrollY);
        const under = stack.includes(element) ? stack.slice(stack.indexOf(element)) : [element, ...ancestors(element)];
        const ground = under.reverse().reduce((colour, at) => over(paint(at), colour), [255, 255, 255]);
        const found = style(element);
        const ink = over(parsed(element instanceof SVGElement ? found.fill : found.color), ground);
        const ratio = contrast(ink, ground);
        if (ratio < LEAST_CONTRAST) faults.add(`contrast ${ratio.toFixed(2)}: ${name(element)}`);
      }
    }
    scrollTo(0, 0);
  };

  if (!onlyColours) layout();
  colours();
  return [...faults];
}
