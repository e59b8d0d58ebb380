package operate

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// CheckDecision says what is wrong with the decision of a person. by and reason are the names of
// the fields for the person who has filled them in.
func CheckDecision(d driver.Decision, by, reason string) error {
	switch {
	case d.By == "":
		return fmt.Errorf("%s is empty", by)
	case len(d.By) > driver.MaxAuthorBytes:
		return fmt.Errorf("%s has %d bytes, at most %d", by, len(d.By), driver.MaxAuthorBytes)
	case len(d.Reason) > driver.MaxReasonBytes:
		return fmt.Errorf("%s has %d bytes, at most %d", reason, len(d.Reason), driver.MaxReasonBytes)
	case !(driver.Decision{By: strings.ToLower(strings.TrimSpace(d.By))}).ByPerson():
		return fmt.Errorf("%s %s names a part of the services, not a person", by, OneLine(d.By))
	case !utf8.ValidString(d.By) || !utf8.ValidString(d.Reason):
		return fmt.Errorf("%s or %s is not UTF-8", by, reason)
	}
	return nil
}
