/** The two things that the view does with the document. */

/** The element with this id. Throws where the page has none of that kind: markup and script are out of step. */
export function byId<E extends Element>(id: string, kind: new () => E): E {
  const found = document.getElementById(id);
  if (!(found instanceof kind)) throw new Error(`the page has no ${kind.name} #${id}`);
  return found;
}

/** A new element. Text goes in as text, never as markup: labels and messages come from elsewhere. */
export function element(tag: string, className: string, ...content: (Node | string)[]): HTMLElement {
  const made = document.createElement(tag);
  if (className !== "") made.className = className;
  made.append(...content);
  return made;
}
