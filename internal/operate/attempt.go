package operate

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// FormatAttempt packs an attempt into a text for forms and files: number.nonce.token.domain. Equal texts
// are equal attempts.
func FormatAttempt(a driver.Attempt) string {
	return fmt.Sprintf("%d.%s.%d.%s", a.Number, a.Nonce, a.Fence.Token, OneLine(a.Fence.Domain))
}

// ParseAttempt reads the text of [FormatAttempt].
func ParseAttempt(s string) (a driver.Attempt, err error) {
	parts := strings.SplitN(s, ".", 4)
	if len(parts) != 4 || parts[3] == "" {
		return a, fmt.Errorf("%q is no attempt ID", s)
	}
	number, err := strconv.ParseUint(parts[0], 10, 32)
	if err == nil {
		a.Number = uint32(number)
		a.Nonce, err = driver.ParseNonce(parts[1])
	}
	if err == nil {
		a.Fence.Token, err = strconv.ParseUint(parts[2], 10, 64)
	}
	a.Fence.Domain = parts[3]
	if err != nil || a.Number == 0 || FormatAttempt(a) != s {
		return driver.Attempt{}, fmt.Errorf("%q is no attempt ID", s)
	}
	return a, nil
}
