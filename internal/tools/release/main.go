// Command release shows that a version can be tagged, and makes no tag:
//
//	release -version v0.1.0 [-table]
//
// It checks the go.mod files, packs the published modules of scripts/modules.txt into zips as the module proxy has them, and
// serves them from a folder. From there it installs the commands, and builds the services in testdata. At the end it prints
// the tags in their order.
//
// -table only prints the table of docs/dependencies.md: which modules each service has in its graph.
//
// It runs at the top of the repository. The proof is of the files as they are, so they have to be committed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/mod/semver"
)

// commands are installed by their users with go install.
var commands = []string{"cmd/idemctl", "example-payments"}

func main() {
	version := flag.String("version", "", "the version to release, such as v0.1.0")
	table := flag.Bool("table", false, "only print which modules the services have in their graphs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *version, *table)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, version string, table bool) (err error) {
	t, err := readTree(".")
	if err != nil {
		return err
	}
	if table {
		version = t.version()
	} else if err := t.check(ctx, version); err != nil {
		return err
	}
	p, err := t.publish(ctx, version)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if !table {
		fmt.Fprintf(os.Stdout, "%d modules are packed as %s\n", len(t.published), version)
		for _, c := range commands {
			if err := p.install(ctx, c); err != nil {
				return err
			}
			fmt.Fprintf(os.Stdout, "go install %s@%s works\n", t.pathOf(c), version)
		}
	}
	for _, name := range services {
		s, err := p.build(ctx, name, !table)
		if err != nil {
			return err
		}
		fmt.Fprintln(os.Stdout, s.row())
		if table {
			fmt.Fprintln(os.Stdout, "  "+s.names())
		}
	}
	if !table {
		t.printSteps(version)
	}
	return nil
}

// check returns what keeps the version from being released.
func (t *tree) check(ctx context.Context, version string) error {
	if !semver.IsValid(version) || semver.Canonical(version) != version {
		return fmt.Errorf("%q is no version such as v0.1.0", version)
	}
	var wrong []error
	if out, err := t.git(ctx, "status", "--porcelain"); err != nil || out != "" {
		wrong = append(wrong, fmt.Errorf("the repository has changes that are not committed: %s%w", out, err))
	}
	for _, folder := range t.published {
		m := t.mods[folder]
		if len(m.Replace) > 0 {
			wrong = append(wrong, fmt.Errorf("%s/go.mod has replace lines, with which go install refuses a module", folder))
		}
		for _, r := range m.Require {
			if t.ours(r.Mod.Path) && r.Mod.Version != version {
				wrong = append(wrong, fmt.Errorf("%s/go.mod requires %s: make versions VERSION=%s writes the new version", folder, r.Mod, version))
			}
		}
		if out, err := t.git(ctx, "tag", "-l", tag(folder, version)); err != nil || out != "" {
			wrong = append(wrong, fmt.Errorf("there is a tag %s%w", out, err))
		}
	}
	return errors.Join(wrong...)
}

// printSteps prints what is left to do.
func (t *tree) printSteps(version string) {
	fmt.Fprintln(os.Stdout, "\nWhat is left to do, on this commit:")
	if log, err := os.ReadFile("CHANGELOG.md"); err != nil || !strings.Contains(string(log), "\n## "+version) {
		fmt.Fprintf(os.Stdout, "  Move what CHANGELOG.md has under Unreleased to a section %s, commit that, and run this again.\n", version)
	}
	var tags []string
	for _, folder := range t.published { // a module comes after those that it requires
		tags = append(tags, tag(folder, version))
		fmt.Fprintf(os.Stdout, "  git tag -a -m %s %s\n", version, tag(folder, version))
	}
	fmt.Fprintf(os.Stdout, "  git push --atomic origin %s\n", strings.Join(tags, " "))
	fmt.Fprintln(os.Stdout, "  goreleaser release, and make tidy once the proxy has the modules")
}

// tag is the tag of a module's version.
func tag(folder, version string) string {
	if folder == "." {
		return version
	}
	return path.Join(folder, version)
}

func (t *tree) git(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = t.root
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
	}
	return string(out), nil
}

// ours reports whether a module is one of the repository.
func (t *tree) ours(module string) bool {
	return slices.ContainsFunc(t.published, func(folder string) bool { return t.pathOf(folder) == module })
}
