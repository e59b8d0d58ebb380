package doctor

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/idemkeeper/idemkeeper/internal/operate"
)

// Finding is the result of a check.
type Finding struct {
	Check  string `json:"check"`
	Status string `json:"status"`
	Detail string `json:"detail"`
}

// report collects findings. The zero value is empty.
type report struct{ findings []Finding }

func (r *report) okf(check, format string, args ...any)   { r.add("ok", check, format, args) }
func (r *report) warnf(check, format string, args ...any) { r.add("warn", check, format, args) }
func (r *report) failf(check, format string, args ...any) { r.add("fail", check, format, args) }

func (r *report) add(status, check, format string, args []any) {
	detail := strings.Join(strings.Fields(operate.Printable(fmt.Sprintf(format, args...))), " ")
	r.findings = append(r.findings, Finding{check, status, passwords.ReplaceAllString(detail, "//***@")})
}

// passwords matches the part of a URL before the host.
var passwords = regexp.MustCompile(`//[^/\s]*@`)

// gradef adds ok or warn.
func (r *report) gradef(good bool, check, format string, args ...any) {
	if good {
		r.okf(check, format, args...)
	} else {
		r.warnf(check, format, args...)
	}
}

// writeFindings prints all findings. It returns errUnwell if one is a failure.
func (c *command) writeFindings(groups ...[]Finding) error {
	failed := false
	for _, group := range groups {
		for _, f := range group {
			failed = failed || f.Status == "fail"
			var err error
			if c.io.JSON {
				err = c.io.WriteJSON(f)
			} else {
				_, err = fmt.Fprintf(c.io.Out, "%-4s  %-17s  %s\n", f.Status, f.Check, f.Detail)
			}
			if err != nil {
				return err
			}
		}
	}
	if failed {
		return errUnwell
	}
	return nil
}
