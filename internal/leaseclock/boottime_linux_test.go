package leaseclock

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The kernel's uptime counts suspended time too, so that the clock has to agree with
// it on a machine that has been suspended as well.
func TestNowAgreesWithTheKernelsUptime(t *testing.T) {
	t.Parallel()
	uptime := func() time.Duration {
		text, err := os.ReadFile("/proc/uptime")
		if err != nil {
			t.Fatal(err)
		}
		seconds, err := strconv.ParseFloat(strings.Fields(string(text))[0], 64)
		if err != nil {
			t.Fatal(err)
		}
		return time.Duration(seconds * float64(time.Second))
	}
	before := uptime()
	now := Now().Sub(Instant{})
	after := uptime()
	const rounding = 20 * time.Millisecond // the file has hundredths of a second
	if now < before-rounding || now > after+rounding {
		t.Errorf("Now() is %v after boot, want between %v and %v", now, before, after)
	}
}
