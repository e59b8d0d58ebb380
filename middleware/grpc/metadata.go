package idemgrpc

import (
	"regexp"
	"strings"

	"google.golang.org/grpc/metadata"
)

// replayed lists the metadata that every method stores: the names that HTTP stores too,
// without those that gRPC sets itself.
var replayed = []string{"content-language", "etag", "location"}

// pick copies the metadata of a handler that is stored.
func (x *Interceptors) pick(md metadata.MD) map[string][]string {
	kept := metadata.MD{}
	for name, values := range md {
		if x.replay.Has(name) {
			kept.Append(name, values...)
		}
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
			if strings.HasSuffix(name, binarySuffix) || !strings.ContainsFunc(v, notPrintable) {
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

// metadataName is the rule of gRPC's wire format.
var metadataName = regexp.MustCompile(`^[0-9a-z_.-]+$`)

// isMetadataName reports whether s names text metadata of the application.
func isMetadataName(s string) bool {
	return metadataName.MatchString(s) && !strings.HasSuffix(s, binarySuffix) && !strings.HasPrefix(s, "grpc-")
}

func notPrintable(r rune) bool { return r < ' ' || r > '~' }
