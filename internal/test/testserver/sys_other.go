//go:build !linux

package testserver

import (
	"errors"
	"io"
	"syscall"
)

// ChildAttr: other systems have no death signal, so servers may outlive a test
// binary that crashes.
func ChildAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

type noClaim struct{}

func (noClaim) Close() error { return nil }

// claimPort reserves nothing here: starting relies on the retry.
func claimPort(int) (io.Closer, error) { return noClaim{}, nil }

// mountSmallDisk: other systems have no tmpfs by this name.
func mountSmallDisk(string, int64) error { return errors.ErrUnsupported }

func unmountLeft() {}

func unmount(string) error { return errors.ErrUnsupported }

// childrenOf knows none here: they end by themselves after their parent.
func childrenOf(int) []int { return nil }

func gone(int) bool { return true }

// AllStopped trusts the signal here.
func AllStopped(int) error { return nil }
