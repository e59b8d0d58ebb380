package browser

import (
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/fetch"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestMain(m *testing.M) { os.Exit(testserver.Main(m)) }

// patience bounds every step in a browser.
const patience = 30 * time.Second

// browser names of Debian, of other systems, and of Google's build.
var browsers = []string{"chromium", "chromium-browser", "google-chrome", "headless-shell"}

// tab is a page in a browser of its own.
type tab struct {
	*testing.T
	ctx context.Context

	mu     sync.Mutex
	faults []string // errors on the page's console, and violations of its policy
	user   string   // who answers when the browser asks for a password; if empty, it is told to cancel
}

// open starts a browser. Without a Chromium the test fails, because the pages are untested then.
func open(t *testing.T, user string, more ...chromedp.ExecAllocatorOption) *tab {
	t.Helper()
	if testing.Short() {
		t.Skip(testserver.LeftOut)
	}
	at := slices.IndexFunc(browsers, func(name string) bool { _, err := exec.LookPath(name); return err == nil })
	if at < 0 {
		t.Fatal("there is no Chromium: install Debian's package chromium, or run make servers")
	}
	path, err := exec.LookPath(browsers[at])
	if err != nil {
		t.Fatal(err)
	}
	opts := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-dev-shm-usage", true), chromedp.UserDataDir(t.TempDir()), chromedp.WSURLReadTimeout(patience))
	opts = append(opts, more...)
	alloc, stop := chromedp.NewExecAllocator(t.Context(), opts...)
	t.Cleanup(stop)
	p := &tab{T: t}
	ctx, end := chromedp.NewContext(alloc, chromedp.WithListener(p.listen))
	t.Cleanup(func() { _ = chromedp.Cancel(ctx); end() })
	p.ctx = ctx
	call(p, log.Enable, cdp.Empty{})
	call(p, runtime.Enable, cdp.Empty{})
	call(p, network.Enable, network.EnableParams{})
	if user != "" {
		token := base64.StdEncoding.EncodeToString([]byte(user + ":secret"))
		call(p, network.SetExtraHTTPHeaders, network.SetExtraHTTPHeadersParams{Headers: network.Headers{"Authorization": "Basic " + token}})
	}
	p.size(1280, "light")
	return p
}

// answers says who signs in from now on when the browser asks for a name and a password. With "" the question is
// cancelled.
func (p *tab) answers(user string) {
	p.Helper()
	p.mu.Lock()
	p.user = user
	p.mu.Unlock()
	handle := true
	call(p, fetch.Enable, fetch.EnableParams{HandleAuthRequests: &handle})
}

// call sends a command of the browser's protocol.
func call[P, R any](p *tab, cmd cdp.Command[P, R], params P) {
	p.Helper()
	if _, err := chromedp.Call(p.ctx, cmd, params); err != nil {
		p.Fatalf("in the browser: %v", err)
	}
}

// get runs an action with a result.
func get[T any](p *tab, a chromedp.Action[T]) T {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, a)
	if err != nil {
		p.Fatalf("in the browser: %v", err)
	}
	return v
}

// listen notes what a developer would see in red.
func (p *tab) listen(ev any) {
	fault := ""
	switch ev := ev.(type) {
	case *fetch.EventRequestPaused:
		go func() { // an error is one of a page that has gone
			_, _ = chromedp.Call(p.ctx, fetch.ContinueRequest, fetch.ContinueRequestParams{RequestID: ev.RequestID})
		}()
	case *fetch.EventAuthRequired:
		p.mu.Lock()
		answer := &fetch.AuthChallengeResponse{Response: fetch.AuthChallengeResponseResponseCancelAuth}
		if p.user != "" {
			answer = &fetch.AuthChallengeResponse{Response: fetch.AuthChallengeResponseResponseProvideCredentials, Username: p.user, Password: "secret"}
		}
		p.mu.Unlock()
		go func() {
			_, _ = chromedp.Call(p.ctx, fetch.ContinueWithAuth, fetch.ContinueWithAuthParams{RequestID: ev.RequestID, AuthChallengeResponse: answer})
		}()
	case *log.EventEntryAdded:
		if ev.Entry.Level == log.EntryLevelError || ev.Entry.Source == log.EntrySourceSecurity {
			fault = ev.Entry.Text + " " + ev.Entry.URL
		}
	case *runtime.EventExceptionThrown:
		fault = fmt.Sprint(ev.ExceptionDetails.Text, " ", ev.ExceptionDetails.URL)
	case *runtime.EventConsoleAPICalled:
		if ev.Type == runtime.ConsoleAPICalledTypeError || ev.Type == runtime.ConsoleAPICalledTypeWarning {
			fault = fmt.Sprint("console.", ev.Type)
		}
	}
	if fault != "" {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.faults = append(p.faults, fault)
	}
}

// wantNoFaults fails if the browser complained about the pages so far. It forgets answers with
// the statuses that the test expects.
func (p *tab) wantNoFaults(expected ...string) {
	p.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, fault := range p.faults {
		if !slices.ContainsFunc(expected, func(e string) bool { return strings.Contains(fault, e) }) {
			p.Errorf("the browser complains: %s", fault)
		}
	}
	p.faults = nil
}

// do runs actions one after the other.
func (p *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	p.Helper()
	for _, a := range actions {
		get(p, a)
	}
}

// eval evaluates a JavaScript expression.
func eval[T any](p *tab, expression string) T {
	p.Helper()
	return get(p, chromedp.Evaluate[T](expression))
}

// click clicks on an element.
func (p *tab) click(selector string) { p.Helper(); p.do(chromedp.Click(chromedp.CSS(selector))) }

// fill types into an element.
func (p *tab) fill(selector, text string) {
	p.Helper()
	p.do(chromedp.SendKeys(chromedp.CSS(selector), text))
}

// to opens a page.
func (p *tab) to(url string) { p.Helper(); p.do(chromedp.Navigate(url)) }

// size sets the width of the window in pixels, and the colours that the user prefers.
func (p *tab) size(width int64, scheme string) {
	p.Helper()
	call(p, emulation.SetDeviceMetricsOverride, emulation.SetDeviceMetricsOverrideParams{Width: width, Height: 900, DeviceScaleFactor: 1, Mobile: width < 500})
	call(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
}

// await waits until a JavaScript expression is true.
func (p *tab) await(expression string) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		// An error is one of a page that is just being replaced.
		if ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool](`!!document.body && !!(`+expression+`)`)); err == nil && ok {
			return
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			text, _ := chromedp.Run(p.ctx, chromedp.Evaluate[string](`document.body.innerText`))
			p.Fatalf("%s does not become true on the page\n%s", expression, text)
		}
	}
}

// press sends keys to the page as a keyboard does.
func (p *tab) press(keys string) { p.Helper(); p.do(chromedp.KeyEvent(keys)) }

// tabTo presses the tabulator until an element has the focus, and wants the focus to be visible.
func (p *tab) tabTo(selector string) {
	p.Helper()
	for range 80 {
		p.press(kb.Tab)
		if eval[bool](p, fmt.Sprintf(`!!document.activeElement && document.activeElement.matches(%q)`, selector)) {
			if eval[string](p, `getComputedStyle(document.activeElement).outlineStyle`) == "none" {
				p.Errorf("the focus on %s cannot be seen", selector)
			}
			return
		}
	}
	p.Fatalf("the keyboard does not reach %s", selector)
}

// pictures looks at the page in four forms. It wants every form to be accessible and no wider than its window, and
// saves the pictures if somebody wants to look at them.
func (p *tab) pictures(name string) {
	p.Helper()
	dir := os.Getenv("IDEMKEEPER_PICTURES")
	for _, width := range []int64{1280, 390} {
		for _, scheme := range []string{"light", "dark"} {
			p.size(width, scheme)
			if wide := eval[int64](p, `document.documentElement.scrollWidth`); wide > width {
				p.Errorf("%s is %d pixels wide in a window of %d", name, wide, width)
			}
			for _, fault := range eval[[]string](p, accessible) {
				p.Errorf("%s, %d pixels wide and %s: %s", name, width, scheme, fault)
			}
			if dir == "" {
				continue
			}
			png := get(p, chromedp.FullScreenshot(100))
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s-%d-%s.png", name, width, scheme)), png, 0o644); err != nil {
				p.Fatal(err)
			}
		}
	}
	p.size(1280, "light")
}
