package held

import (
	"fmt"
	"strings"
)

// Root is explained in package zookeeper, which exports it. Base returns the client and
// what is put in front of each path.
type Root interface {
	Base() (c *Client, prefix string)
}

// CheckPath accepts "/a/b": absolute, no empty or relative element.
func CheckPath(name, path string, optional bool) error {
	if path == "" && optional {
		return nil
	}
	if !strings.HasPrefix(path, "/") || path == "/" {
		return fmt.Errorf("zookeeper: %s %q is not an absolute path below /", name, path)
	}
	for part := range strings.SplitSeq(path[1:], "/") {
		if part == "" || part == "." || part == ".." || strings.ContainsFunc(part, func(r rune) bool { return r < 0x20 || r == 0x7f }) {
			return fmt.Errorf("zookeeper: %s %q has the element %q", name, path, part)
		}
	}
	return nil
}
