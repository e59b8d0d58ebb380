package rules

import "github.com/idemkeeper/idemkeeper/idem/driver"

// Forget says what a Forget does with entry e, which is as [Entry.At] returned it. If write is not
// nil the store replaces e by it.
func Forget(e *Entry) (write *Entry, err error) {
	if e == nil || e.Response == nil {
		return nil, nil
	}
	rest := Forgotten(e.Copy())
	if rest == nil {
		return nil, nil
	}
	write = new(*e)
	write.Response, err = rest.AppendBinary(nil)
	return write, err
}

// Forgotten returns what a Forget leaves of the response of a record, and nil if the record has no
// more than that.
func Forgotten(rec driver.Record) *driver.Response {
	rest := driver.Response{Omitted: true}
	switch r := rec.Response; {
	case rec.State != driver.StateCompleted && rec.State != driver.StateUnknown:
		return nil
	case r == nil && rec.ResponseErr == nil:
		return nil
	case r == nil:
	case r.Omitted && len(r.Header) == 0 && len(r.Trailer) == 0 && len(r.Body) == 0:
		return nil
	default:
		rest.Status = r.Status
	}
	return &rest
}
