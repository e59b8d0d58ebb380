package browser

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/chromedp/chromedp/kb"

	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

// build makes the sample once, in the module of the library.
var build = sync.OnceValues(func() (string, error) {
	dir, err := filepath.Abs("../..")
	if err != nil {
		return "", err
	}
	out := filepath.Join(built, "example-payments")
	cmd := exec.Command("go", "build", "-o", out, "./example-payments")
	cmd.Dir = dir
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, text)
	}
	return out, nil
})

var readyLine = regexp.MustCompile(`^ready http=(\S+) `)

// startSample starts the sample, and stops it at the end of the test.
func startSample(t *testing.T, flags ...string) (url string) {
	t.Helper()
	if testing.Short() {
		t.Skip(testserver.LeftOut)
	}
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, append([]string{"--http-addr", "127.0.0.1:0", "--grpc-addr", "127.0.0.1:0"}, flags...)...)
	cmd.SysProcAttr = testserver.ChildAttr()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_, _ = io.Copy(io.Discard, out)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the sample ended with %v\n%s", err, stderr.String())
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	m := readyLine.FindStringSubmatch(line)
	if m == nil {
		_ = cmd.Process.Kill()
		t.Fatalf("the sample printed %q, %v", line, errors.Join(err))
	}
	return "http://" + m[1]
}

// charged waits until the page shows how often alice has paid, with nothing on its way.
func (p *tab) charged(times string) {
	p.Helper()
	p.await(fmt.Sprintf(`document.querySelector("#charged").innerText === %q && !document.querySelector("#answers .wait")`, times))
}

func TestSampleChargesOnce(t *testing.T) {
	for name, flags := range map[string][]string{"joined": nil, "memory": {"--token-store", "memory", "--processor-latency", "300ms"}} {
		t.Run(name, func(t *testing.T) {
			url := startSample(t, flags...)
			p := open(t, "")
			p.to(url + "/")
			p.await(`document.querySelector("#balance").innerText.startsWith("$")`)
			if name == "joined" {
				p.pictures("sample-first")
			}
			p.click("#double")
			p.await(`document.querySelectorAll("#answers li").length === 2`)
			p.charged("1 time")
			p.await(`document.querySelectorAll("#answers .ok").length === 1 && document.querySelectorAll("#answers .replay").length === 1`)
			p.click("#pay")
			p.await(`document.querySelectorAll("#answers .replay").length === 2`)
			p.click("#other")
			p.await(`document.querySelector("#answers .fail .text").innerText.includes("key-reused")`)
			p.charged("1 time")
			for _, step := range []string{"received", "lock", "begin", "handler", "settle", "release", "replay", "refused"} {
				p.await(fmt.Sprintf(`!!document.querySelector("#timeline .%s")`, step))
			}
			p.pictures("sample-paid-" + name)
			p.wantNoFaults("409", "422")
		})
	}
}

// A charge that breaks off in its middle is charged once after the next try.
func TestSampleCrashes(t *testing.T) {
	for name, flags := range map[string][]string{"joined": nil, "memory": {"--token-store", "memory"}, "process": {"--demo"}} {
		t.Run(name, func(t *testing.T) {
			url := startSample(t, flags...)
			p := open(t, "")
			p.to(url + "/")
			p.tabTo("#crash")
			p.press(kb.Enter)
			p.await(`document.querySelectorAll("#answers li").length === 1 && !document.querySelector("#answers .wait")`)
			p.tabTo("#fresh") // around the page
			p.tabTo("#pay")
			p.press(kb.Enter)
			p.await(`document.querySelectorAll("#answers li").length === 2`)
			p.charged("1 time")
			p.pictures("sample-crashed-" + name)
			if name == "process" {
				p.await(`document.querySelector("#answers li:last-child .text").innerText.includes("connection broke")`)
				p.await(`!!document.querySelector("#timeline .crash")`)
			}
			p.wantNoFaults("500", "503", "409", "net::ERR_")
		})
	}
}
