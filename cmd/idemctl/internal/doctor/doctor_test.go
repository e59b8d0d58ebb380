package doctor

import (
	"slices"
	"testing"
)

func TestReportKeepsPasswords(t *testing.T) {
	var r report
	r.failf("c", "dial redis://user:p@ss@host:1: %s", "no\nway\x1b")
	if got := r.findings[0].Detail; got != "dial redis://***@host:1: no way\uFFFD" {
		t.Errorf("detail = %q", got)
	}
}

func TestSentinels(t *testing.T) {
	addrs, master := sentinels("redis+sentinel://u:p@a:1, b,[::1]/m/2")
	if want := []string{"a:1", "b:26379", "[::1]:26379"}; !slices.Equal(addrs, want) || master != "m" {
		t.Errorf("sentinels() = %q, %q, want %q, m", addrs, master, want)
	}
	if addrs, _ := sentinels("redis://a:1"); addrs != nil {
		t.Errorf("sentinels() of one server = %q", addrs)
	}
}
