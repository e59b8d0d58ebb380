// A module of its own, because what makes module zips must not become a dependency of the library.
module github.com/idemkeeper/idemkeeper/internal/tools/release

go 1.26.0

require golang.org/x/mod v0.42.0
