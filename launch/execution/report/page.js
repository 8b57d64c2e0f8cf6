// Times in the reader's zone.
"use strict";
for (const time of document.querySelectorAll("time")) {
  const date = new Date(time.dateTime);
  if (!Number.isNaN(date.getTime())) {
    time.title = time.textContent;
    time.textContent = date.toLocaleString([], { dateStyle: "medium", timeStyle: "long" });
  }
}
