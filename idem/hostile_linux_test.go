package idem_test

import (
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// No body takes long to compare. The longest ones take a second or two of a processor. The work would take
// minutes if it grew with the square of the length. Other processes do not count, so a busy machine changes nothing.
func TestHostileBodiesAreCheapToCompare(t *testing.T) {
	t.Parallel()
	fill := func(s string) string { return strings.Repeat(s, idem.DefaultMaxRequestBody/len(s)) }
	var alike, distinct, fields strings.Builder
	for i := range 1 << 18 {
		name := []byte("abcdefghijklmnopqr")
		for bit := range name {
			if i>>bit&1 == 1 {
				name[bit] -= 'a' - 'A'
			}
		}
		fmt.Fprintf(&alike, `,"%s":1`, name)
		fmt.Fprintf(&distinct, `,"%d":1`, i*7919)
		fmt.Fprintf(&fields, "%s[]=%d&", name, i)
	}
	const json, form, parts = "application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary="
	for name, r := range map[string]idem.RequestParts{
		"names alike":       {ContentType: json, Body: []byte("{" + alike.String()[1:] + "}")},
		"many names":        {ContentType: json, Body: []byte("{" + distinct.String()[1:] + "}")},
		"nested arrays":     {ContentType: json, Body: []byte(fill("["))},
		"nested objects":    {ContentType: json, Body: []byte(fill(`{"a":`))},
		"escapes":           {ContentType: json, Body: []byte(`"` + fill(`\u0061`) + `"`)},
		"a long number":     {ContentType: json, Body: []byte("1e" + fill("9"))},
		"many fields":       {ContentType: form, Body: []byte(fields.String())},
		"brackets":          {ContentType: form, Body: []byte(fill("[]"))},
		"many parts":        {ContentType: parts + "x", Body: []byte(fill("--x\r\n\r\n\r\n") + "--x--\r\n")},
		"headers of a part": {ContentType: parts + "x", Body: []byte("--x\r\n" + fill("a: b\r\n") + "\r\n\r\n--x--\r\n")},
		"almost a boundary": {ContentType: parts + strings.Repeat("a", 69), Body: []byte(fill("\r\n--" + strings.Repeat("a", 68) + "b"))},
		"a long query":      {Query: fill("a=1&")},
		"a long media type": {ContentType: json + ";" + fill("a=b;"), Body: []byte("{}")},
	} {
		const most = 30 * time.Second
		if took := threadTime(t, func() { _, _ = idem.RequestFingerprint(idem.FingerprintVersion, r) }); took > most {
			t.Errorf("%s: RequestFingerprint() computes for %v, want %v at most", name, took, most)
		}
	}
}

// threadTime is how long fn computes.
func threadTime(t *testing.T, fn func()) time.Duration {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	used := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_THREAD, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := used()
	fn()
	return used() - before
}
