//go:build grpcurl

package api

import (
	"os/exec"
	"path/filepath"
	"testing"
)

func init() {
	buildGRPCurl = func(t *testing.T, dir string) {
		t.Helper()
		build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(dir, "grpcurl"), "github.com/fullstorydev/grpcurl/cmd/grpcurl")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("go build grpcurl = %v\n%s", err, out)
		}
	}
}
