package server_test

import (
	"strconv"
	"sync/atomic"
	"testing"
)

// The cost of a payment over HTTP with everything in the process, with a fresh key and
// replayed.
func BenchmarkPayment(b *testing.B) {
	bench := newBench(b)
	c := bench.instance(b, nil)
	var n atomic.Int64
	b.Run("fresh", func(b *testing.B) {
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				i := n.Add(1)
				body := `{"from":"alice","to":"bob","amount":1,"currency":"USD"}`
				if i%2 == 0 { // and back, so that the money lasts
					body = `{"from":"bob","to":"alice","amount":1,"currency":"USD"}`
				}
				c.pay("fresh-"+strconv.FormatInt(i, 10), body).wantAnswer(b, "payment", 201, "")
			}
		})
	})
	b.Run("replayed", func(b *testing.B) {
		c.pay("replayed", order)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				c.pay("replayed", order).wantAnswer(b, "replay", 201, "")
			}
		})
	})
}
