// The page of one build in a file of its own: the data is in the document, and there is no server.

import { Build, buildPage } from "./build.js";

const page = JSON.parse(document.getElementById("data").textContent);
const build = new Build();
build.apply(page.change);
buildPage(document.getElementById("main"), build, { id: page.id, line: page.line, alone: true });
