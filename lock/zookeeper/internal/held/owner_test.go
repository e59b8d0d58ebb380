package held

import (
	"errors"
	"strings"
	"testing"
)

// Only the same try of the same client is the same owner. So a client tells its own znode after a
// lost reply from that of its earlier attempt.
func TestOwnerIsTheSameTry(t *testing.T) {
	t.Parallel()
	c := &Client{Owner: Owner{Host: "h", PID: 7, Instance: "i"}}
	a, b := c.Owned("nonce"), c.Owned("nonce")
	if a.Nonce != "nonce" || a.Host != "h" || a.Try == b.Try || a.Same(b) || !a.Same(ParseOwner(a.Encode())) {
		t.Errorf("Owned() = %+v and %+v, want two tries, of which each is itself alone", a, b)
	}
	other := a
	other.Instance = "j"
	for _, p := range []Owner{other, {}, ParseOwner(nil), ParseOwner([]byte(`{"instance":"i","try":1`))} {
		if a.Same(p) || p.Same(a) || (Owner{}).Same(p) {
			t.Errorf("%+v is the same as %+v", p, a)
		}
	}
	if got := a.String(); got != "h (pid 7, instance i)" {
		t.Errorf("String() = %s", got)
	}
	if got := ParseOwner([]byte(`{"host":"h","pid":"x"}`)).String(); got != "an unknown owner" {
		t.Errorf("String() of foreign data = %s", got)
	}
}

func TestCheckPath(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"/a", "/a/b", "/a.b/..c", "/a b/ü"} {
		if err := CheckPath("path", good, false); err != nil {
			t.Errorf("CheckPath(%q) = %v", good, err)
		}
	}
	for _, bad := range []string{"", "/", "a", "a/b", "//", "/a/", "/a//b", "/.", "/a/./b", "/..", "/a/../b", "/a\x00", "/a\x1fb", "/a\x7f"} {
		if err := CheckPath("path", bad, false); err == nil || !strings.Contains(err.Error(), "path") {
			t.Errorf("CheckPath(%q) = %v, want an error", bad, err)
		}
	}
	if err := CheckPath("path", "", true); err != nil {
		t.Errorf("CheckPath() of an optional path = %v", err)
	}
}

// The end of a lease is told once, to those who have not taken it back, and at once to those who
// come later.
func TestEndIsToldOnce(t *testing.T) {
	t.Parallel()
	e := ending{done: make(chan struct{})}
	lost := errors.New("lost")
	var told []string
	note := func(who string) func(error) {
		return func(err error) {
			if !errors.Is(err, lost) {
				t.Errorf("%s was told %v, want %v", who, err, lost)
			}
			told = append(told, who)
		}
	}
	e.onEnd(note("first"))
	forget := e.onEnd(note("second"))
	e.onEnd(note("third"))
	forget()
	forget()
	if len(e.ends) != 2 {
		t.Errorf("%d are to be told, want 2", len(e.ends))
	}
	if !e.end(lost) || e.end(nil) || len(e.ends) != 0 {
		t.Errorf("end() did not end the lease once")
	}
	e.onEnd(note("late"))()
	if got := strings.Join(told, " "); got != "first third late" {
		t.Errorf("told %s, want first third late", got)
	}
	if !errors.Is(e.over(), lost) || !errors.Is(e.loss(), lost) {
		t.Errorf("Over() = %v, loss() = %v, want %v", e.over(), e.loss(), lost)
	}
}
