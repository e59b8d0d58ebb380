//go:build !linux

package tests

import "syscall"

func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

func allStopped(int) error { return nil }
