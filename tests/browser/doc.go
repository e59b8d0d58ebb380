// Package browser tests the pages of the project in a headless Chromium: the operator's console
// and the page of the sample. It is a module of its own, so that users of the library do not
// download what drives a browser.
//
// IDEMKEEPER_PICTURES=DIR makes the tests save pictures of the pages there, 1280 and 390 pixels
// wide, light and dark.
package browser
