package record

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// progress shows how far a run is: a bar on a terminal, and a line now and then elsewhere.
type progress struct {
	out      io.Writer
	terminal bool
	all      int
	began    time.Time
	shown    time.Time
	drawn    bool // a bar is on the line
}

const (
	barEvery  = 100 * time.Millisecond
	lineEvery = 10 * time.Second
	barWidth  = 30
)

func newProgress(out io.Writer, all int) *progress {
	p := &progress{out: out, all: all, began: time.Now()}
	p.shown = p.began
	if f, ok := out.(*os.File); ok {
		info, err := f.Stat()
		p.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return p
}

// show shows that n of all are done.
func (p *progress) show(n int) {
	now := time.Now()
	every := lineEvery
	if p.terminal {
		every = barEvery
	}
	if now.Sub(p.shown) < every {
		return
	}
	p.shown = now
	text := p.text(n, now.Sub(p.began))
	if !p.terminal {
		fmt.Fprintln(p.out, "idemctl: "+text)
		return
	}
	full := barWidth * n / max(p.all, 1)
	fmt.Fprintf(p.out, "\r[%s%s] %s\x1b[K", strings.Repeat("#", full), strings.Repeat(".", barWidth-full), text)
	p.drawn = true
}

// text says how many are done, how fast, and how long the rest takes.
func (p *progress) text(n int, took time.Duration) string {
	rate := float64(n) / max(took.Seconds(), 0.001)
	text := fmt.Sprintf("%d of %d, %.0f/s", n, p.all, rate)
	if rest := p.all - n; rest > 0 && rate > 0 {
		text += ", " + (time.Duration(float64(rest)/rate) * time.Second).String() + " left"
	}
	return text
}

// clear removes the bar, so that a line can take its place.
func (p *progress) clear() {
	if p.drawn {
		fmt.Fprint(p.out, "\r\x1b[K")
		p.drawn = false
	}
}
