"""Debian's Chromium, driven by playwright: what a person would see."""

from __future__ import annotations

import contextlib
import shutil
import warnings

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]

# Of a screenshot: how many pixels of its middle differ clearly from the one in its corner, and how many colours there are.
LOOK = """async data => {
  const image = new Image();
  image.src = 'data:image/png;base64,' + data;
  await image.decode();
  const canvas = document.createElement('canvas');
  [canvas.width, canvas.height] = [image.width, image.height];
  const context = canvas.getContext('2d');
  context.drawImage(image, 0, 0);
  const {data: bytes} = context.getImageData(0, 0, image.width, image.height), pixels = new Uint32Array(bytes.buffer);
  const far = n => [0, 1, 2].reduce((sum, k) => sum + Math.abs(bytes[4 * n + k] - bytes[k]), 0);
  let differ = 0;
  for (let n = 0; n < pixels.length; n++) differ += far(n) > 120;
  return [differ / pixels.length, new Set(pixels).size];
}"""


@contextlib.contextmanager
def chromium():
    """Yield a browser; skip with a warning where there is none."""
    if CHROMIUM is None:
        warnings.warn("NO CHROMIUM HERE: nothing has opened the page. On Debian: apt install chromium", stacklevel=2)
        pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield found
        finally:
            found.close()


@contextlib.contextmanager
def opened(browser, address, width=1280, scheme="light", cards=True):
    """Open a page; yield it when its cards are drawn. Any console message, error or dialog fails the test."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, timezone_id="UTC")
    page = context.new_page()
    page.set_default_timeout(120_000)
    complaints = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append("a dialog") or dialog.dismiss())
    try:
        page.goto(address if "://" in address else f"file://{address}")
        if cards:
            page.wait_for_selector("#cards .sensor")
        yield page
        assert complaints == []
    finally:
        context.close()


def painted(page, element):
    """Return (share of an element's pixels that stand out from its corner, number of colours)."""
    ((share, colours),) = all_painted(page, [element])
    return share, colours


def all_painted(page, elements):
    """Do as `painted` for several elements with one blank page: opening a page takes longer than evaluating a picture."""
    import base64

    pictures = []
    for element in elements:
        element.scroll_into_view_if_needed()
        pictures.append(base64.b64encode(element.screenshot()).decode())
    blank = page.context.new_page()
    try:
        return [blank.evaluate(LOOK, picture) for picture in pictures]
    finally:
        blank.close()
