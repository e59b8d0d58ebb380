package main

import (
	"bufio"
	"embed"
	"fmt"
	"strings"
)

// Fault is a deliberate fault.
type Fault struct {
	Name     string // what is wrong, in a few words
	Package  string // of the test, such as ./idem
	Test     string // the top-level test that has to fail
	Server   bool   // the test starts a server
	File     string // from the root of the module
	Old, New string // the code to replace, and the code with the fault
}

//go:embed faults/*.patch
var patches embed.FS

// subjects are the files in faults, in the order of the table.
var subjects = []string{"engine", "joined", "stores", "locks", "edges", "operate", "crashtest", "simulation"}

// allFaults returns the faults of all files.
func allFaults() ([]Fault, error) {
	var all []Fault
	for _, subject := range subjects {
		name := "faults/" + subject + ".patch"
		text, err := patches.ReadFile(name)
		if err != nil {
			return nil, err
		}
		faults, err := parseFaults(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s:%w", name, err)
		}
		all = append(all, faults...)
	}
	return all, nil
}

// parseFaults reads a file of patches. A patch is
//
//	Fault: what is wrong
//	Test: ./package TestName
//	Server: yes
//	--- file
//	-code to replace
//	+code with the fault
//
// Server is there if the test starts one. Lines with a space in front are in both. As in the output of
// git diff, lines with @@ and +++ in front may follow the name of the file, and say nothing.
func parseFaults(text string) (all []Fault, err error) {
	var f *Fault
	lines := bufio.NewScanner(strings.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		name, isFault := strings.CutPrefix(line, "Fault: ")
		test, isTest := strings.CutPrefix(line, "Test: ")
		file, isFile := strings.CutPrefix(line, "--- ")
		switch {
		case isFault:
			all = append(all, Fault{Name: name})
			f = &all[len(all)-1]
		case line == "", strings.HasPrefix(line, "@@ "), strings.HasPrefix(line, "+++ "):
		case f == nil:
			return nil, fmt.Errorf("%d: %q comes before the first fault", n, line)
		case isTest:
			f.Package, f.Test, _ = strings.Cut(test, " ")
		case line == "Server: yes":
			f.Server = true
		case isFile:
			f.File = strings.TrimPrefix(file, "a/")
		case f.File != "" && line[0] == '-':
			f.Old += line[1:] + "\n"
		case f.File != "" && line[0] == '+':
			f.New += line[1:] + "\n"
		case f.File != "" && line[0] == ' ':
			f.Old += line[1:] + "\n"
			f.New += line[1:] + "\n"
		default:
			return nil, fmt.Errorf("%d: %q is no line of a fault", n, line)
		}
	}
	return all, lines.Err()
}

// Table is a table of the faults in Markdown, with a line for each.
func Table(all []Fault) string {
	var b strings.Builder
	b.WriteString("| fault | in | caught by |\n|---|---|---|\n")
	for _, f := range all {
		fmt.Fprintf(&b, "| %s | `%s` | `%s` in %s |\n", f.Name, f.File, f.Test, strings.TrimPrefix(f.Package, "./"))
	}
	return b.String()
}
