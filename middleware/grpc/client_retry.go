package idemgrpc

import (
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/idemkeeper/idemkeeper/idem"
)

// verdict reads the answer to one attempt, of a call with a key: may sending it
// again help? asked is how long the server wants to be left alone.
func verdict(err error, trailer metadata.MD) (asked time.Duration, again bool) {
	if len(trailer.Get(ReplayedMetadataKey)) > 0 {
		return 0, false // stored: it is what the next one would be told as well
	}
	asked, told := retryDelay(err)
	if values := trailer.Get(pushbackKey); len(values) > 0 {
		ms, err := strconv.ParseInt(values[0], 10, 64)
		if len(values) > 1 || err != nil || ms < 0 { // gRFC A6: what cannot be read is a no
			return 0, false
		}
		asked, told = max(asked, time.Duration(min(ms, maxAsked.Milliseconds()))*time.Millisecond), true
	}
	switch status.Code(err) {
	case codes.Unavailable:
		return asked, true
	case codes.Aborted:
		code, ok := CodeOf(err)
		return asked, ok && code == idem.CodeInProgress
	case codes.ResourceExhausted: // also of a message that is too large, which stays so
		return asked, told
	default:
		return 0, false
	}
}

// retryDelay reads RetryInfo.
func retryDelay(err error) (d time.Duration, told bool) {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return min(max(info.GetRetryDelay().AsDuration(), 0), maxAsked), true
		}
	}
	return 0, false
}
