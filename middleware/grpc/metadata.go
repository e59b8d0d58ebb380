package idemgrpc

import (
	"strings"

	"google.golang.org/grpc/metadata"
)

// replayed lists the metadata that every method stores: the names that HTTP stores too,
// without those that gRPC sets itself.
var replayed = []string{"content-language", "etag", "location"}

// pick copies the metadata of a handler that is stored.
func (x *Interceptors) pick(md metadata.MD) map[string][]string {
	var kept map[string][]string
	for name, values := range md {
		if !x.replay.Has(name) || len(values) == 0 {
			continue
		}
		if kept == nil {
			kept = map[string][]string{}
		}
		name = strings.ToLower(name)
		kept[name] = append(kept[name], values...)
	}
	return kept
}

// marked returns stored metadata with the mark of a stored outcome. The mark is in header
// and trailer, because a connection can break between the header and the outcome. Names
// and values are checked once more, because a resolver or an operator may have made them.
func (x *Interceptors) marked(stored map[string][]string) metadata.MD {
	md := metadata.MD{}
	for name, values := range stored {
		name = strings.ToLower(name)
		if !x.replay.Has(name) {
			continue
		}
		for _, v := range values {
			if strings.HasSuffix(name, binarySuffix) || isPrintable(v) {
				md.Append(name, v)
			}
		}
	}
	md.Set(ReplayedMetadataKey, "true")
	return md
}

// binarySuffix marks metadata whose values are bytes.
const binarySuffix = "-bin"

// isReplayable reports whether metadata of a name, text or binary, can be replayed.
// Content-Type is that of the protocol.
func isReplayable(name string) bool {
	name = strings.TrimSuffix(strings.ToLower(name), binarySuffix)
	return isMetadataName(name) && name != "content-type"
}

// isMetadataName is the rule of gRPC's wire format for names of text metadata.
func isMetadataName(s string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '_', c == '-', c == '.':
		default:
			return false
		}
	}
	return s != "" && !strings.HasSuffix(s, binarySuffix) && !strings.HasPrefix(s, "grpc-")
}

func isPrintable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
