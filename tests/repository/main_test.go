// Package repository holds what the repository says of itself: its layers, exported names, dialects, documents with their
// links, commands and programs, the Makefile and its scripts.
package repository

import (
	"os"
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
)

func TestMain(m *testing.M) { os.Exit(kit.Main(m)) }
