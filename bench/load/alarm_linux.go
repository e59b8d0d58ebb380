package load

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// alarm waits for a time, and is late by some 60 µs. Timers of the Go runtime are late by up to 1 ms in an idle
// process, because it waits in epoll, which counts milliseconds. A timer of the kernel wakes epoll itself.
type alarm struct {
	fd   int
	file *os.File
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("timerfd_create", err)
	}
	return &alarm{fd, os.NewFile(uintptr(fd), "timer")}, nil
}

func (a *alarm) until(t time.Time) error {
	left := time.Until(t)
	if left <= 0 {
		return nil
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(left))}
	if err := unix.TimerfdSettime(a.fd, 0, &spec, nil); err != nil {
		return os.NewSyscallError("timerfd_settime", err)
	}
	var expirations [8]byte
	_, err := a.file.Read(expirations[:])
	return err
}
