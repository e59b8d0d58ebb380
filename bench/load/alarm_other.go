//go:build !linux

package load

import "time"

// alarm waits for a time. It may be late by a millisecond.
type alarm struct{}

func newAlarm() (*alarm, error) { return &alarm{}, nil }

func (*alarm) until(t time.Time) error {
	time.Sleep(time.Until(t))
	return nil
}
