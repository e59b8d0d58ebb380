// Package cli has what every command of idemctl shares: the streams, one JSON object a
// line, and the errors that decide the exit code.
package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/idemkeeper/idemkeeper/internal/operate"
)

// Streams are the standard streams of a command.
type Streams struct {
	In       io.Reader // nil for an empty input
	Out, Err io.Writer
	JSON     bool // write one JSON object a line to Out
}

// Sayf writes a message to Err, in one line.
func (s *Streams) Sayf(format string, args ...any) {
	fmt.Fprintf(s.Err, "idemctl: %s\n", fmt.Sprintf(format, args...))
}

// ReadAll reads In up to a limit, in bytes, and one byte more if there is more.
func (s *Streams) ReadAll(limit int64) ([]byte, error) {
	if s.In == nil {
		return nil, nil
	}
	return io.ReadAll(io.LimitReader(s.In, limit+1))
}

// WriteJSON writes an object and a line break to Out. It escapes more than package json,
// which escapes controls below U+0020 only.
func (s *Streams) WriteJSON(v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var out strings.Builder
	for _, r := range string(data) { // unprintable ones are within strings
		switch high, low := utf16.EncodeRune(r); {
		case strconv.IsPrint(r):
			out.WriteRune(r)
		case high == utf8.RuneError:
			fmt.Fprintf(&out, `\u%04x`, r)
		default:
			fmt.Fprintf(&out, `\u%04x\u%04x`, high, low)
		}
	}
	out.WriteByte('\n')
	_, err = io.WriteString(s.Out, out.String())
	return err
}

// Group returns a command that only has subcommands.
func Group(name, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: name, Short: short, Args: cobra.NoArgs, RunE: SubcommandWanted}
	cmd.AddCommand(commands...)
	return cmd
}

// SubcommandWanted refuses a command without its subcommand.
func SubcommandWanted(cmd *cobra.Command, _ []string) error {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return WrongUse("%s needs a subcommand: %s; see --help", cmd.CommandPath(), strings.Join(names, ", "))
}

// OneLine is an error's text in one printable line.
func OneLine(err error) string {
	return operate.OneLine(strings.Join(strings.Fields(err.Error()), " "))
}
