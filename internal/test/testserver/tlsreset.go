package testserver

import (
	"crypto/tls"
	"net"
	"testing"
)

// ResetAfterTLS starts a server that completes the handshake of each connection and then resets it.
// It returns the address. A server that refuses a client certificate under TLS 1.3 looks like this to
// a client whose write meets the reset first. before, if not nil, has the words of the server in front
// of the handshake.
func ResetAfterTLS(tb testing.TB, ca *Authority, before func(net.Conn)) string {
	tb.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatalf("testserver: %v", err)
	}
	tb.Cleanup(func() { _ = ln.Close() })
	cfg := ca.Server()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				if before != nil {
					before(c)
				}
				_ = tls.Server(c, cfg).Handshake()
				_ = c.(*net.TCPConn).SetLinger(0)
				_ = c.Close()
			}()
		}
	}()
	return ln.Addr().String()
}
